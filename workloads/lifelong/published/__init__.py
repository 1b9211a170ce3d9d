"""Lifelong retrieval's entries of ``orchestrator reproduce``: comparisons, an ablation, saved embeddings."""

from workloads.lifelong.published.figures import SAVINGS
from workloads.lifelong.published.tables import ABLATION, MAIN, VARIANTS

PUBLISHED = (MAIN, ABLATION, VARIANTS, SAVINGS)
"""All entries, in the order in which they are listed."""
