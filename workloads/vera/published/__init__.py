"""What ``orchestrator reproduce`` knows of VERA: the comparison with its baselines, the ablation, and two figures."""

from workloads.vera.published.figures import RELIABILITY
from workloads.vera.published.tables import ABLATION, MAIN

PUBLISHED = (MAIN, ABLATION, RELIABILITY)
"""In the order in which they are listed."""
