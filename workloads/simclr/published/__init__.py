"""Results on images in the thesis: tables 6.2 and 6.4 to 6.8, figures 6.8 to 6.10. Plain data.

PyTorch is imported when something is run.
"""

from __future__ import annotations

from workloads.published import Published
from workloads.simclr.published.datasets import SIZES
from workloads.simclr.published.figures import FIGURES
from workloads.simclr.published.tables import TABLES

PUBLISHED: tuple[Published, ...] = (*TABLES, *FIGURES, SIZES)
