"""Interactions as a kind of data. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workloads.data.source import Dataset, Kind, ReadOptions

if TYPE_CHECKING:
    from workloads.data.interactions.variants import Split


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Check that the dataset supports split and noise, and that its parts have evaluable data."""
    if dataset.verified and options.split != "clean" and not options.noise:
        return
    from workloads.data.interactions.load import load_interactions
    from workloads.data.interactions.splits import check_parts

    split = cast("Split", "official" if options.split in (None, "dev") else options.split)
    data = load_interactions(dataset.name, root, split, options.noise or 0.0)
    check_parts(data.train, data.test, [dataset.folder_in(root) / source.path for source in dataset.files])


def counts(name: str, root: Path) -> Mapping[str, int]:
    """Users, items and interactions; the first call on a machine converts the dataset."""
    from workloads.data.interactions.load import load_interactions

    data = load_interactions(name, root)
    return {"users": data.n_users, "items": data.n_items, "interactions": len(data.train) + len(data.test)}


INTERACTIONS = Kind(
    "interactions",
    "a table with the columns user and item (.parquet, .csv, .tsv); a folder with two of them, train "
    "and test, or with train.txt and test.txt, a user's items a line",
    own=(),  # any path of no other kind
    check=check,
    counts=counts,
)
