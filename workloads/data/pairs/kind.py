"""Sentence pairs as a kind of data. Imports no NumPy."""

from __future__ import annotations

from workloads.data.pairs.sts import is_pairs, own_pairs
from workloads.data.pairs.types import KIND
from workloads.data.source import Kind

PAIRS = Kind(
    KIND,
    "a table with the columns sentence1, sentence2 and score (.parquet, .csv, .tsv); a folder with "
    "train and, where there are any, dev and test; with both, train may have the single column sentence",
    own=((is_pairs, own_pairs),),
    check="workloads.data.pairs.load:check",
    overlap="workloads.data.overlap:pairs",
    checksums_suffice=False,  # test scores may be hidden
)
