"""Metrics of the rankings of every session: Success@5, Recall@100, MRR@10, forgetting and forward transfer.

At the end of each session the model ranks the documents indexed so far. Metrics are computed from these stored rankings
and the judgements. In a session only indexed documents are relevant, and a query counts if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Columns, Direction, Evaluation
from workloads.lifelong.dataset import DEPTH, LifelongData
from workloads.metrics.retrieval import per_query

MEASURES = ("success_at_5", "recall_at_100", "mrr_at_10")
DIRECTIONS: Mapping[str, Direction] = {
    **{f"*{name}": "max" for name in MEASURES}, "forward_transfer": "max",
    "forgetting": "min", "documents_embedded": "min",
}  # fmt: skip
"""Better direction of each metric."""

_TRANSFER = "mrr_at_10"
"""The measure R[t, s] of forgetting and forward transfer."""

_KS = (5, 10, 100)

Values = Mapping[str, NDArray[np.float64]]
"""Each measure's value per query; NaN where the query does not count."""


@dataclass(frozen=True)
class SessionCost:
    """Cost of a session.

    Documents embedded for the index, documents embedded to choose negatives, and the seconds that the former took.
    """

    embedded: int
    embedded_for_negatives: int
    seconds: float = 0.0


class SessionEvaluator:
    """Computes the metrics of the queries of a split."""

    def __init__(
        self, data: LifelongData, queries: NDArray[np.int64], arrivals: NDArray[np.int16] | None = None
    ) -> None:
        """``arrivals``: the session in which each query of the collection arrives, (Q,); None: they are all there."""
        self.data = data
        self.queries = queries
        self.arrivals = None if arrivals is None else arrivals[queries]
        rows = data.data.judgements.astype(np.int64)
        self._relevant = rows[(rows[:, 2] > 0) & np.isin(rows[:, 0], queries)]
        self._bm25 = [self.values(session, ranked) for session, ranked in enumerate(data.bm25)]

    def values(self, session: int, ranked: NDArray[np.int64]) -> Values:
        """Each measure of each query of the split.

        Args:
            session: the session at whose end the documents were ranked.
            ranked: indices of documents, best first, padded with -1, for all queries of the collection (Q, DEPTH).
        """
        arrival = self.data.sessions.session
        relevant = self._relevant[(arrival[self._relevant[:, 1]] >= 0) & (arrival[self._relevant[:, 1]] <= session)]
        relevant_codes = np.sort(relevant[:, 0] * len(arrival) + relevant[:, 1])
        docs = ranked[self.queries]
        ranked_codes = self.queries[:, None] * len(arrival) + docs
        hits = (docs >= 0) & np.isin(ranked_codes, relevant_codes)
        counts = np.bincount(relevant[:, 0], minlength=len(self.data.data.queries))[self.queries]
        judged = np.arange(max(1, counts.max(initial=0))) < counts[:, None]
        scores = np.where(docs >= 0, -np.arange(DEPTH, dtype=np.float32), -np.inf).astype(np.float32)
        ranks, grades, all_grades = (torch.from_numpy(side.astype(np.float32)) for side in (scores, hits, judged))
        measures = per_query(ranks, grades, all_grades, _KS)
        judged_by = counts > 0 if self.arrivals is None else (counts > 0) & (self.arrivals <= session)
        return {name: np.where(judged_by, measures[name].numpy().astype(np.float64), np.nan) for name in MEASURES}

    def evaluation(
        self, rankings: Sequence[NDArray[np.int64]], costs: Sequence[SessionCost], units: bool
    ) -> Evaluation:
        """The metrics after ``len(rankings)`` sessions.

        Each measure is reported for the last session. ``average_...`` is the mean over all sessions of the run, where
        sessions to come count as 0. ``forgetting``: by how much a topic's MRR@10 has fallen from its best, averaged
        over topics. ``forward_transfer``: MRR@10 on the topic of a session before the session begins, minus BM25's.
        ``bm25_...``: the same for BM25. Where queries arrive, ``arriving_...``: of those that arrived in the last
        session. The units of an average have the metric as their mean.
        """
        values = [self.values(session, ranked) for session, ranked in enumerate(rankings)]
        total = len(self.data.sessions)
        topics = self.data.topic[self.queries]
        metrics = {name: _mean(values[-1][name]) if values else 0.0 for name in MEASURES}
        columns: dict[str, NDArray[np.float64]] = {}
        for prefix, side in (("", values), ("bm25_", self._bm25[: len(values)])):
            for name in MEASURES:
                columns[f"{prefix}average_{name}"] = _averaged([one[name] for one in side], len(self.queries), total)
        metrics |= {name: float(column.mean()) for name, column in columns.items()}
        count = int(self.data.sessions.topic.max()) + 1
        own = _by_topic(values, topics, count)
        bm25 = _by_topic(self._bm25, topics, count)
        metrics["forgetting"] = forgetting(own)
        metrics["forward_transfer"] = forward_transfer(own, bm25, self.data.sessions.main)
        metrics["documents_embedded"] = float(sum(one.embedded for one in costs))
        metrics["sessions_ended"] = float(len(rankings))
        arriving = self._arriving(values)
        metrics |= {name: float(column[-1]) if len(column) else 0.0 for name, column in arriving.items()}
        session, topic = np.nonzero(~np.isnan(own))  # R[t, s] in long form, for topics with a query that counts
        tables: dict[str, Columns] = {
            "sessions": {**self._sessions(values, costs), **arriving},
            "topics": {
                "session": session, "topic": topic, "mrr_at_10": own[session, topic],
                "bm25_mrr_at_10": bm25[session, topic],
            },
        }  # fmt: skip
        return Evaluation(metrics, {"id": self.queries, **columns} if units else {}, tables)

    def _arriving(self, values: Sequence[Values]) -> dict[str, NDArray[np.float64]]:
        """The mean of each session over the queries that arrived in it, (sessions,); 0 where there is none."""
        if self.arrivals is None:
            return {}
        columns = {}
        for prefix, side in (("", values), ("bm25_", self._bm25[: len(values)])):
            own = [one[_TRANSFER][self.arrivals == session] for session, one in enumerate(side)]
            columns[f"{prefix}arriving_{_TRANSFER}"] = np.array([_mean(column) for column in own], np.float64)
        return columns

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
            "documents_read": np.array([one.embedded_for_negatives for one in costs], np.int64),
            "embedding_seconds": np.array([one.seconds for one in costs], np.float64),
            "embedding_saved": saved([one.embedded for one in costs], sizes),
            **shown,
        }


def saved(embedded: Sequence[int], arriving: Sequence[int]) -> NDArray[np.float64]:
    """Share of embeddings saved up to the end of each session, compared with an index rebuilt in every session.

    With a half of the documents in session 0 and T equal further ones, an append-only index has saved
    ``1 - 1 / (0.75 (T + 1))`` in the end.

    Args:
        embedded: documents embedded for the index in each session, (T + 1,).
        arriving: documents that arrive in each session, (T + 1,).
    """
    rebuilt = np.cumsum(np.cumsum(arriving))
    share: NDArray[np.float64] = 1 - np.cumsum(embedded) / np.maximum(1, rebuilt)
    return share


def forgetting(matrix: NDArray[np.float64]) -> float:
    """Mean over topics s of the highest R[t, s] of the sessions t before the last, less that of the last.

    Args:
        matrix: R, (sessions, topics); NaN where a topic has no query yet.

    Returns:
        0 with fewer than two sessions. Negative if the last session is better than all before.
    """
    if len(matrix) < 2:
        return 0.0
    before = matrix[:-1]
    last = matrix[-1]
    measured = ~np.isnan(before).all(0) & ~np.isnan(last)
    return float((np.nanmax(before[:, measured], 0) - last[measured]).mean()) if measured.any() else 0.0


def forward_transfer(matrix: NDArray[np.float64], bm25: NDArray[np.float64], main: NDArray[np.integer]) -> float:
    """Mean over sessions s of R[s - 1, topic of s], minus the same of BM25.

    Args:
        matrix: R, (finished sessions, topics).
        bm25: the same of BM25, for all sessions.
        main: the topic of each session, -1 for session 0.

    Returns:
        0 before the end of the first session.
    """
    pairs = [(s - 1, int(main[s])) for s in range(1, min(len(matrix) + 1, len(main)))]
    gains = [matrix[t, topic] - bm25[t, topic] for t, topic in pairs if not np.isnan(matrix[t, topic])]
    return float(np.mean(gains)) if gains else 0.0


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
    """Each query's contribution to the mean over sessions of the mean over the queries that count, (Q,)."""
    total = np.zeros(queries)
    for column in columns:
        counted = ~np.isnan(column)
        if counted.any():
            total[counted] += column[counted] * queries / counted.sum() / sessions
    return total
