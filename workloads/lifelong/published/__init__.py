"""What ``orchestrator reproduce`` knows of lifelong retrieval: our comparison of the methods, and L2R's parts."""

from workloads.lifelong.published.tables import ABLATION, MAIN

PUBLISHED = (MAIN, ABLATION)
"""In the order in which they are listed."""
