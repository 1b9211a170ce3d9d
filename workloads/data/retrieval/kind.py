"""Retrieval collections as a kind of data. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workloads.data.retrieval.beir import is_beir, own_beir
from workloads.data.retrieval.topical import is_topical, own_topical
from workloads.data.retrieval.triples import is_triples, own_triples
from workloads.data.source import Dataset, Kind, ReadOptions

if TYPE_CHECKING:
    from workloads.data.retrieval.types import Unknown


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Read a collection that has no checksums, with the run's policy for unknown judgements."""
    if dataset.verified:
        return
    from workloads.data.retrieval.load import load_retrieval

    load_retrieval(dataset.name, root, cast("Unknown", options.unknown or "refuse"))


def counts(name: str, root: Path) -> Mapping[str, int]:
    """Documents, queries and judgements; the first call on a machine converts the collection."""
    from workloads.data.retrieval.load import load_retrieval

    return load_retrieval(name, root, "skip").counts()


RETRIEVAL = Kind(
    "retrieval",
    "a folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/*.tsv; a collection of LoTTE or CPR "
    "or a folder of them; Parquet with the columns query, positive and negative",
    own=((is_beir, own_beir), (is_topical, own_topical), (is_triples, own_triples)),
    check=check,
    counts=counts,
)
