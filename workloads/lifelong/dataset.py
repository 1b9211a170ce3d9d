"""A collection as a stream of sessions with all that BM25 says of it, shared by the trials of a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.retrieval.bm25 import search
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Queries, Retrieval, split_queries
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.lifelong.params import Params
from workloads.lifelong.sessions import Sessions, Stream, load_sessions, query_topics

DEPTH = 100
"""Documents of a ranking that are kept and measured."""

_KEPT = 4  # streams a process keeps


@dataclass(frozen=True, eq=False)
class LifelongData:
    """A stream, its queries and BM25's candidates.

    ``train`` (n,): the training queries with a relevant document in session 0, which are the labelled ones;
    ``positives``, the relevant documents of each there, highest grade first. ``candidates``, for each session,
    (n, C) int64: the session's documents that BM25 finds for a training query, -1 past the end; of session 0 without
    the positives, while of later ones no one knows them. With ``cumulative`` those of all sessions so far. ``bm25``,
    for each session, (Q, DEPTH) int64: BM25's ranking of all documents so far.
    """

    data: Retrieval
    sessions: Sessions
    queries: Queries
    train: NDArray[np.int64]
    positives: tuple[NDArray[np.int64], ...]
    candidates: tuple[NDArray[np.int64], ...]
    bm25: tuple[NDArray[np.int64], ...]

    @cached_property
    def topic(self) -> NDArray[np.int16]:
        """Of each query, (Q,)."""
        return query_topics(self.data, self.sessions.topic)

    @property
    def first(self) -> NDArray[np.int64]:
        """One positive of each training query: the one that the selection measures others by, (n,)."""
        return np.array([docs[0] for docs in self.positives], np.int64)

    def vocabulary(self) -> list[str]:
        """The texts that an encoder from scratch takes its words from: session 0 and the training queries."""
        docs: list[str] = self.data.docs.take(self.sessions.arriving(0)).to_pylist()
        queries: list[str] = self.data.queries.take(self.train).to_pylist()
        return docs + queries


def prepare(params: Params, root: Path, holdout: bool) -> LifelongData:
    """The stream that the parameters describe; from the second call of a process on, in a millisecond.

    Raises:
        ValueError: a session without documents, too few queries, or none with a positive in session 0.
        workloads.data.DataError: the dataset is unknown, missing or damaged, or bm25s is not installed.
    """
    stream = Stream(
        params.split_sessions, params.split_first, params.split_main, params.split_topics, params.split_seed
    )
    data = load_retrieval(params.dataset, root, params.dataset_unknown)
    parts = (params.split_validation, params.split_test, holdout)
    return _prepare(params.dataset, root, data, stream, *parts, params.candidates, params.update == "retrain")


@lru_cache(maxsize=_KEPT)
def _prepare(
    dataset: str,
    root: Path,
    data: Retrieval,
    stream: Stream,
    validation: float,
    test: float,
    holdout: bool,
    depth: int,
    cumulative: bool,
) -> LifelongData:
    sessions = load_sessions(dataset, root, data, stream)
    queries = split_queries(data, seed=stream.seed, validation=validation, test=test, holdout=holdout)
    positives = {int(query): _relevant(data, sessions, int(query)) for query in queries.train}
    train = np.array([query for query, docs in positives.items() if len(docs)], np.int64)
    if not len(train):
        raise ValueError(
            f"none of the {len(queries.train)} training queries has a relevant document in session 0. "
            f"Raise split_first={stream.first:g}"
        )
    known = tuple(positives[query] for query in train.tolist())
    train_queries: list[str] = data.queries.take(train).to_pylist()
    every: list[str] = data.queries.to_pylist()
    candidates, ranked = [], []
    for session in range(len(sessions)):
        so_far = sessions.until(session)
        ranked.append(_found(data, so_far, every, DEPTH))
        docs = so_far if cumulative else sessions.arriving(session)
        most = max(map(len, known)) if session == 0 or cumulative else 0
        found = _found(data, docs, train_queries, depth + most)
        candidates.append(_without(found, known, depth) if most else found)
    return LifelongData(data, sessions, queries, train, known, tuple(candidates), tuple(ranked))


@lru_cache(maxsize=_KEPT)
def tokens(data: Retrieval, tokenizer: Tokenizer) -> Tokens:
    """All documents, then all queries, tokenised once a process for each tokenizer."""
    return tokenizer(data.docs.to_pylist() + data.queries.to_pylist())


def _relevant(data: Retrieval, sessions: Sessions, query: int) -> NDArray[np.int64]:
    """A query's relevant documents in session 0, highest grade first."""
    rows = data.judgements[data.indptr[query] : data.indptr[query + 1]]
    rows = rows[(rows[:, 2] > 0) & (sessions.session[rows[:, 1]] == 0)]
    docs: NDArray[np.int64] = rows[np.argsort(-rows[:, 2], kind="stable"), 1].astype(np.int64)
    return docs


def _found(data: Retrieval, docs: NDArray[np.int64], queries: list[str], depth: int) -> NDArray[np.int64]:
    """BM25's best of some documents for each query, by number; -1 past the end."""
    found = search(data.docs.take(docs).to_pylist(), queries, depth).docs
    numbers: NDArray[np.int64] = docs[found]
    numbers[found < 0] = -1
    return numbers


def _without(found: NDArray[np.int64], known: tuple[NDArray[np.int64], ...], depth: int) -> NDArray[np.int64]:
    """The candidates that are not known to be relevant, moved together, the first ``depth``."""
    kept = np.full((len(found), depth), -1, np.int64)
    for row, (docs, relevant) in enumerate(zip(found, known)):
        others = docs[(docs >= 0) & ~np.isin(docs, relevant)][:depth]
        kept[row, : len(others)] = others
    return kept
