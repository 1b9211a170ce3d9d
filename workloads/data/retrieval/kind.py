"""Retrieval collections as a kind of data. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from workloads.data.retrieval.beir import is_beir, own_beir
from workloads.data.retrieval.topical import is_topical, own_topical
from workloads.data.retrieval.trec import is_trec, own_trec
from workloads.data.retrieval.triples import is_triples, own_triples
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset, Kind

OWN_VERSION = "2"
"""Version of users' own collections. 2: the parts of their queries are drawn from a stream of their own."""


def _own(make: Callable[[str, Path], Dataset], name: str, path: Path) -> Dataset:
    entry = make(name, path)
    return replace(entry, reader=partial(_read_own, entry), version=OWN_VERSION)


def _read_own(entry: Dataset, folder: Path) -> Retrieval:
    data: Retrieval = entry.reader(folder)
    return replace(data, own=True)


_LAYOUTS = ((is_beir, own_beir), (is_trec, own_trec), (is_topical, own_topical), (is_triples, own_triples))

RETRIEVAL = Kind(
    "retrieval",
    "a folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/*.tsv, or with corpus.jsonl, topics.tsv and "
    "qrels.trec or qrels/*.trec; a collection of LoTTE or CPR "
    "or a folder of them; Parquet with the columns query, positive and negative",
    own=tuple((fits, partial(_own, make)) for fits, make in _LAYOUTS),
    check="workloads.data.retrieval.load:check",
    overlap="workloads.data.overlap:queries",
    counts="workloads.data.retrieval.load:counts",
)
