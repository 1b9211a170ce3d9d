"""A collection as a stream of sessions, with BM25's candidates and rankings, which are computed once a machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.abstention.part import split_collection
from workloads.data.conversion_cache import cached_arrays
from workloads.data.datasets import fingerprint
from workloads.data.retrieval.bm25 import K1, VERSION, B, Candidates, Tokenised
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Queries, Retrieval
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.lifelong.params import Params
from workloads.lifelong.sessions import Sessions, Stream, arrivals, load_sessions, query_topics
from workloads.memory import BoundedCache

DEPTH = 100
"""Length of the rankings that are stored and evaluated."""


@dataclass(frozen=True, eq=False)
class LifelongData:
    """A stream of sessions, its queries and BM25's candidates.

    ``train`` (n,): the labelled queries, that is, training queries with a relevant document in session 0.
    ``positives``: the relevant documents of each in session 0, highest grade first. ``candidates``, for each session,
    (n, C) int64: BM25's candidates among the session's documents for each labelled query, padded with -1; with full
    retraining, among the documents of all sessions so far. The positives are removed from the candidates of session 0;
    later sessions have no labels. ``bm25``, for each session, (Q, DEPTH) int64: BM25's ranking of all documents so far.
    ``seed``: of the split. ``abstention``: the queries of the abstention part. ``held``: those of the validation part,
    also in a refit, which trains on them.
    """

    data: Retrieval
    sessions: Sessions
    queries: Queries
    train: NDArray[np.int64]
    positives: tuple[NDArray[np.int64], ...]
    candidates: tuple[NDArray[np.int64], ...]
    bm25: tuple[NDArray[np.int64], ...]
    seed: int
    abstention: NDArray[np.int64]
    held: NDArray[np.int64]

    @cached_property
    def topic(self) -> NDArray[np.int16]:
        """The topic of each query, (Q,)."""
        return query_topics(self.data, self.sessions.topic)

    @cached_property
    def query_sessions(self) -> NDArray[np.int16]:
        """The session in which each query arrives, (Q,), if queries arrive with the documents of their topic (E-L9)."""
        return arrivals(self.sessions, self.topic, self.seed)

    @property
    def first(self) -> NDArray[np.int64]:
        """The first positive of each labelled query, which the selection of negatives compares with, (n,)."""
        return np.array([docs[0] for docs in self.positives], np.int64)

    def vocabulary(self) -> list[str]:
        """The texts whose words make the vocabulary of an encoder from scratch: session 0 and the labelled queries."""
        docs: list[str] = self.data.docs.take(self.sessions.arriving(0)).to_pylist()
        queries: list[str] = self.data.queries.take(self.train).to_pylist()
        return docs + queries


def prepare(params: Params, root: Path, holdout: bool, abstention_part: float = 0.0) -> LifelongData:
    """Prepare the stream that the parameters describe. The result is cached in the process.

    Raises:
        ValueError: a session has no documents, there are too few queries, or none has a positive in session 0.
        workloads.data.DataError: the dataset is unknown, missing or damaged, or bm25s is not installed.
    """
    stream = Stream(
        params.split_sessions, params.split_first, params.split_main, params.split_topics, params.split_seed
    )
    data = load_retrieval(params.dataset, root, params.dataset_unknown)
    parts = (params.split_validation, params.split_test, holdout, abstention_part)
    return _prepare(params.dataset, root, data, stream, *parts, params.candidates, params.update == "retrain")


@BoundedCache
def _prepare(
    dataset: str,
    root: Path,
    data: Retrieval,
    stream: Stream,
    validation: float,
    test: float,
    holdout: bool,
    share: float,
    depth: int,
    cumulative: bool,
) -> LifelongData:
    sessions = load_sessions(dataset, root, data, stream)
    queries, held, abstention = split_collection(data, stream.seed, validation, test, holdout=holdout, share=share)
    positives = {int(query): _relevant(data, sessions, int(query)) for query in queries.train}
    train = np.array([query for query, docs in positives.items() if len(docs)], np.int64)
    if not len(train):
        raise ValueError(
            f"none of the {len(queries.train)} training queries has a relevant document in session 0. "
            f"Raise split_first={stream.first:g}"
        )
    labels = tuple(positives[query] for query in train.tolist())
    parts = f"{validation} {test} {holdout} {depth} {cumulative}"
    parts += f" without {share}" if share else ""
    identity = f"{VERSION} BM25(k1={K1}, b={B}) {DEPTH} {fingerprint(dataset, root)} {stream} {parts} {len(data.docs)}"
    ranked = cached_arrays("bm25", identity, lambda: _ranked(data, sessions, train, labels, depth, cumulative))
    candidates, rankings = (
        tuple(ranked[f"{name}-{session}"] for session in range(len(sessions))) for name in ("candidates", "rankings")
    )
    abstention = np.setdiff1d(abstention, data.empty_queries)
    return LifelongData(data, sessions, queries, train, labels, candidates, rankings, stream.seed, abstention, held)


def _ranked(
    data: Retrieval,
    sessions: Sessions,
    train: NDArray[np.int64],
    labels: tuple[NDArray[np.int64], ...],
    depth: int,
    cumulative: bool,
) -> dict[str, NDArray[np.int64]]:
    """BM25's candidates of the training queries and rankings of all queries, for each session."""
    tokenised = Tokenised(data.docs.to_pylist())
    queries = tokenised.terms(data.queries.to_pylist())
    train_queries = [queries[query] for query in train.tolist()]
    ranked = {}
    for session in range(len(sessions)):
        so_far = sessions.until(session)
        search = tokenised.index(so_far)
        ranked[f"rankings-{session}"] = _numbers(search(queries, DEPTH), so_far)
        docs = so_far
        most = max(map(len, labels)) if session == 0 or cumulative else 0
        if session and not cumulative:
            docs = sessions.arriving(session)
            search = tokenised.index(docs)
        hits = _numbers(search(train_queries, depth + most), docs)
        ranked[f"candidates-{session}"] = _without(hits, labels, depth) if most else hits
    return ranked


@BoundedCache
def tokens(data: Retrieval, tokenizer: Tokenizer) -> Tokens:
    """Tokenise all documents, then all queries. Cached per process and tokenizer."""
    return tokenizer(data.docs.to_pylist() + data.queries.to_pylist())


def _relevant(data: Retrieval, sessions: Sessions, query: int) -> NDArray[np.int64]:
    """A query's relevant documents in session 0, highest grade first."""
    rows = data.judgements[data.indptr[query] : data.indptr[query + 1]]
    rows = rows[(rows[:, 2] > 0) & (sessions.session[rows[:, 1]] == 0)]
    docs: NDArray[np.int64] = rows[np.argsort(-rows[:, 2], kind="stable"), 1].astype(np.int64)
    return docs


def _numbers(found: Candidates, docs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The candidates' indices among all documents, where BM25 has searched ``docs``; padded with -1."""
    ranked: NDArray[np.int64] = docs[found.docs]
    ranked[found.docs < 0] = -1
    return ranked


def _without(hits: NDArray[np.int64], labels: tuple[NDArray[np.int64], ...], depth: int) -> NDArray[np.int64]:
    """The first ``depth`` hits of each query that are not labelled relevant, padded with -1."""
    remaining = np.full((len(hits), depth), -1, np.int64)
    for row, (docs, relevant) in enumerate(zip(hits, labels)):
        others = docs[(docs >= 0) & ~np.isin(docs, relevant)][:depth]
        remaining[row, : len(others)] = others
    return remaining
