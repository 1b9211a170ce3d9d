"""What the thesis publishes on recommendation: its tables and figures, and the settings of every row. Plain data."""

from __future__ import annotations

from workloads.published import Published
from workloads.recommender.published.datasets import SIZES
from workloads.recommender.published.figures import FIGURES
from workloads.recommender.published.tables import TABLES

PUBLISHED: tuple[Published, ...] = (*TABLES.values(), *FIGURES.values(), *SIZES)
