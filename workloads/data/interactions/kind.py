"""Interactions as a kind of data. Imports no NumPy."""

from __future__ import annotations

from workloads.data.source import Kind

INTERACTIONS = Kind(
    "interactions",
    "a table with the columns user and item (.parquet, .csv, .tsv); a folder with two of them, train "
    "and test, or with train.txt and test.txt, a user's items a line",
    own=(),  # what has no other form
    check="workloads.data.interactions.load:check",
    overlap="workloads.data.overlap:interactions",
    counts="workloads.data.interactions.load:counts",
)
