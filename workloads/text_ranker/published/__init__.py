"""The text ranker's entries of ``orchestrator reproduce``: the note's loss plots and our comparisons."""

from workloads.text_ranker.published.plots import LOSS_PLOTS
from workloads.text_ranker.published.tables import LOSSES, PASSAGES

PUBLISHED = (LOSS_PLOTS, LOSSES, PASSAGES)
"""All entries, in the order in which they are listed."""
