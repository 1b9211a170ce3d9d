"""How the rows of the thesis' recommendation tables are run: what all of them share."""

from __future__ import annotations

from workloads.published import Regime

THESIS = Regime(
    "recommender", "thesis", dataset="ml-100k", space="recommender_published:around",
    named_by=("dataset", "backbone", "loss", "sampler"), refit=True, unit="user",
)  # fmt: skip

BY = ("dataset", "backbone")
"""What makes a block of a table."""
