"""Lifelong retrieval's entries of ``orchestrator reproduce``: our comparison of the methods, and L2R's ablation."""

from workloads.lifelong.published.tables import ABLATION, MAIN

PUBLISHED = (MAIN, ABLATION)
"""All entries, in the order in which they are listed."""
