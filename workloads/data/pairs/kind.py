"""Sentence pairs as a kind of data. Imports no NumPy."""

from __future__ import annotations

from pathlib import Path

from workloads.data.pairs.sts import is_pairs, own_pairs
from workloads.data.pairs.types import KIND
from workloads.data.source import Dataset, Kind, ReadOptions


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Check that test scores are not hidden and that the dataset has the parts that the split needs."""
    from workloads.data.pairs.load import load_pairs

    load_pairs(dataset.name, root, "dev" if options.split == "dev" else "official")


PAIRS = Kind(
    KIND,
    "a table with the columns sentence1, sentence2 and score (.parquet, .csv, .tsv); a folder with "
    "train and, where there are any, dev and test",
    own=((is_pairs, own_pairs),),
    check=check,
)
