"""Retrieval collections as a kind of data. Imports no NumPy."""

from __future__ import annotations

from workloads.data.retrieval.beir import is_beir, own_beir
from workloads.data.retrieval.topical import is_topical, own_topical
from workloads.data.retrieval.trec import is_trec, own_trec
from workloads.data.retrieval.triples import is_triples, own_triples
from workloads.data.source import Kind

RETRIEVAL = Kind(
    "retrieval",
    "a folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/*.tsv, or with corpus.jsonl, topics.tsv and "
    "qrels.trec or qrels/*.trec; a collection of LoTTE or CPR "
    "or a folder of them; Parquet with the columns query, positive and negative",
    own=((is_beir, own_beir), (is_trec, own_trec), (is_topical, own_topical), (is_triples, own_triples)),
    check="workloads.data.retrieval.load:check",
    overlap="workloads.data.overlap:queries",
    counts="workloads.data.retrieval.load:counts",
)
