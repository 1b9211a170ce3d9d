"""What rankings of every session are worth: Success@5, Recall@100, MRR@10, averaged, forgotten and carried over.

A model's rankings of the documents that were indexed at the end of its session are kept, so that a measurement reads
nothing but them and the judgements. A query counts in a session where one of its relevant documents is indexed by
then, and only those are relevant in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Columns, Evaluation
from workloads.lifelong.dataset import DEPTH, LifelongData
from workloads.metrics.retrieval import per_query

MEASURES = ("success_at_5", "recall_at_100", "mrr_at_10")
_TRANSFER = "mrr_at_10"
"""R[t, s] of forgetting and forward transfer."""

_KS = (5, 10, 100)

Values = Mapping[str, NDArray[np.float64]]
"""A measure of each query; NaN where it does not count."""


@dataclass(frozen=True)
class SessionCost:
    """What a session cost: documents that were ``embedded`` for the index and ``read`` to choose negatives from, and
    the ``seconds`` of the former."""

    embedded: int
    read: int
    seconds: float = 0.0


class SessionEvaluator:
    """The queries of a split, and what rankings of theirs are worth."""

    def __init__(self, data: LifelongData, queries: NDArray[np.int64]) -> None:
        self.data, self.queries = data, queries
        rows = data.data.judgements.astype(np.int64)
        self._relevant = rows[(rows[:, 2] > 0) & np.isin(rows[:, 0], queries)]
        self._bm25 = [self.values(session, ranked) for session, ranked in enumerate(data.bm25)]

    def values(self, session: int, ranked: NDArray[np.int64]) -> Values:
        """Each measure of each query of the split.

        Args:
            session: by whose end the documents were indexed.
            ranked: (Q, DEPTH) numbers of documents, best first, -1 past the end; of all queries of the collection.
        """
        there = self.data.sessions.session
        relevant = self._relevant[(there[self._relevant[:, 1]] >= 0) & (there[self._relevant[:, 1]] <= session)]
        codes = np.sort(relevant[:, 0] * len(there) + relevant[:, 1])
        docs = ranked[self.queries]
        found_codes = self.queries[:, None] * len(there) + docs
        hits = (docs >= 0) & np.isin(found_codes, codes)
        counts = np.bincount(relevant[:, 0], minlength=len(self.data.data.queries))[self.queries]
        judged = np.arange(max(1, counts.max(initial=0))) < counts[:, None]
        scores = np.where(docs >= 0, -np.arange(DEPTH, dtype=np.float32), -np.inf).astype(np.float32)
        ranks, grades, all_grades = (torch.from_numpy(side.astype(np.float32)) for side in (scores, hits, judged))
        found = per_query(ranks, grades, all_grades, _KS)
        return {name: np.where(counts > 0, found[name].numpy().astype(np.float64), np.nan) for name in MEASURES}

    def evaluation(
        self, rankings: Sequence[NDArray[np.int64]], costs: Sequence[SessionCost], units: bool
    ) -> Evaluation:
        """All there is to say after ``len(rankings)`` sessions.

        Each measure is that of the last session; ``average_...`` is the mean over all sessions of the run, those to
        come counting 0, so that it grows to its value at the end. ``forgetting``: how far a topic's MRR@10 has fallen
        from its best, the mean over topics. ``forward_transfer``: MRR@10 on the topic of a session before it begins,
        less BM25's. ``bm25_...``: BM25's. The units' averages have the metric as their mean.
        """
        values = [self.values(session, ranked) for session, ranked in enumerate(rankings)]
        total, topics = len(self.data.sessions), self.data.topic[self.queries]
        metrics = {name: _mean(values[-1][name]) if values else 0.0 for name in MEASURES}
        columns: dict[str, NDArray[np.float64]] = {}
        for prefix, side in (("", values), ("bm25_", self._bm25[: len(values)])):
            for name in MEASURES:
                columns[f"{prefix}average_{name}"] = _averaged([one[name] for one in side], len(self.queries), total)
        metrics |= {name: float(column.mean()) for name, column in columns.items()}
        count = int(self.data.sessions.topic.max()) + 1
        ours, theirs = _by_topic(values, topics, count), _by_topic(self._bm25, topics, count)
        metrics["forgetting"] = forgetting(ours)
        metrics["forward_transfer"] = forward_transfer(ours, theirs, self.data.sessions.main)
        metrics["documents_embedded"] = float(sum(one.embedded for one in costs))
        metrics["sessions_ended"] = float(len(rankings))
        session, topic = np.nonzero(~np.isnan(ours))  # R[t, s] in long form, of the topics that a query counts for
        tables: dict[str, Columns] = {
            "sessions": self._sessions(values, costs),
            "topics": {
                "session": session, "topic": topic, "mrr_at_10": ours[session, topic],
                "bm25_mrr_at_10": theirs[session, topic],
            },
        }  # fmt: skip
        return Evaluation(metrics, {"id": self.queries, **columns} if units else {}, tables)

    def _sessions(self, values: Sequence[Values], costs: Sequence[SessionCost]) -> Columns:
        done = len(values)
        sizes = [len(self.data.sessions.arriving(number)) for number in range(done)]
        shown = {
            f"{prefix}{name}": np.array([_mean(one[name]) for one in side[:done]], np.float64)
            for prefix, side in (("", values), ("bm25_", self._bm25))
            for name in MEASURES
        }
        return {
            "session": np.arange(done),
            "documents": np.array(sizes, np.int64),
            "queries": np.array([int((~np.isnan(one[_TRANSFER])).sum()) for one in values], np.int64),
            "documents_embedded": np.array([one.embedded for one in costs], np.int64),
            "documents_read": np.array([one.read for one in costs], np.int64),
            "embedding_seconds": np.array([one.seconds for one in costs], np.float64),
            **shown,
        }


def forgetting(matrix: NDArray[np.float64]) -> float:
    """Mean over topics s of the highest R[t, s] of the sessions t before the last, less that of the last.

    Args:
        matrix: R, (sessions, topics); NaN where a topic has no query yet.

    Returns:
        0 with fewer than two sessions. Below 0 where the last session is better than all before.
    """
    if len(matrix) < 2:
        return 0.0
    before, last = matrix[:-1], matrix[-1]
    known = ~np.isnan(before).all(0) & ~np.isnan(last)
    return float((np.nanmax(before[:, known], 0) - last[known]).mean()) if known.any() else 0.0


def forward_transfer(matrix: NDArray[np.float64], bm25: NDArray[np.float64], main: NDArray[np.integer]) -> float:
    """Mean over sessions s of R[s - 1, topic of s], less what BM25 has there.

    Args:
        matrix: R, (sessions that ended, topics).
        bm25: the same of BM25, of all sessions.
        main: the topic of each session, -1 for session 0.

    Returns:
        0 before the first session has ended.
    """
    pairs = [(s - 1, int(main[s])) for s in range(1, min(len(matrix) + 1, len(main)))]
    found = [matrix[t, topic] - bm25[t, topic] for t, topic in pairs if not np.isnan(matrix[t, topic])]
    return float(np.mean(found)) if found else 0.0


def _by_topic(values: Sequence[Values], topics: NDArray[np.int16], count: int) -> NDArray[np.float64]:
    """R[t, s], (sessions, topics)."""
    matrix = np.full((len(values), count), np.nan)
    for session, one in enumerate(values):
        for topic in range(count):
            counted = one[_TRANSFER][(topics == topic) & ~np.isnan(one[_TRANSFER])]
            if len(counted):
                matrix[session, topic] = counted.mean()
    return matrix


def _mean(column: NDArray[np.float64]) -> float:
    counted = column[~np.isnan(column)]
    return float(counted.mean()) if len(counted) else 0.0


def _averaged(columns: Sequence[NDArray[np.float64]], queries: int, sessions: int) -> NDArray[np.float64]:
    """What each query has to do with the mean over sessions of the means over the queries that count there, (Q,)."""
    total = np.zeros(queries)
    for column in columns:
        counted = ~np.isnan(column)
        if counted.any():
            total[counted] += column[counted] * queries / counted.sum() / sessions
    return total
