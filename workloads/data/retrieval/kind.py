"""Retrieval collections as a kind of data. Imports no NumPy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from workloads.data.errors import UnclearLayout
from workloads.data.retrieval.beir import is_beir, own_beir
from workloads.data.retrieval.topical import is_topical, own_topical
from workloads.data.retrieval.trec import is_trec, own_trec
from workloads.data.retrieval.triples import is_triples, own_triples
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset, Kind

OWN_VERSION = "2"
"""Version of users' own collections. 2: the parts of their queries are drawn from a stream of their own."""


_LAYOUTS = ((is_beir, own_beir), (is_trec, own_trec), (is_topical, own_topical), (is_triples, own_triples))


def _is_own(path: Path) -> bool:
    return any(fits(path) for fits, _ in _LAYOUTS)


def _own(name: str, path: Path) -> Dataset:
    entries = [make(name, path) for fits, make in _LAYOUTS if fits(path)]
    if len(entries) > 1:
        raise UnclearLayout(
            "the folder has two layouts", file=path,
            got="; and ".join(", ".join(source.path for source in entry.files) for entry in entries),
            fix="Move the files of one of them to another folder",
        )  # fmt: skip
    return replace(entries[0], reader=partial(_read_own, entries[0]), version=OWN_VERSION)


def _read_own(entry: Dataset, folder: Path) -> Retrieval:
    data: Retrieval = entry.reader(folder)
    return replace(data, own=True)


RETRIEVAL = Kind(
    "retrieval",
    "a folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/*.tsv, or with corpus.jsonl, topics.tsv and "
    "qrels.trec or qrels/*.trec; a collection of LoTTE or CPR "
    "or a folder of them; Parquet with the columns query, positive and negative",
    own=((_is_own, _own),),
    check="workloads.data.retrieval.load:check",
    overlap="workloads.data.overlap:queries",
    counts="workloads.data.retrieval.load:counts",
)
