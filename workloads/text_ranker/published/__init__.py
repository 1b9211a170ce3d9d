"""What ``orchestrator reproduce`` knows of the text ranker: the note's loss plots, and our comparison of the losses."""

from workloads.text_ranker.published.plots import LOSS_PLOTS
from workloads.text_ranker.published.tables import LOSSES

PUBLISHED = (LOSS_PLOTS, LOSSES)
"""In the order in which they are listed."""
