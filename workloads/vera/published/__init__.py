"""VERA's entries of ``orchestrator reproduce``: the comparison with its baselines, the ablation, and two figures."""

from workloads.vera.published.figures import RELIABILITY
from workloads.vera.published.tables import ABLATION, MAIN

PUBLISHED = (MAIN, ABLATION, RELIABILITY)
"""All entries, in the order in which they are listed."""
