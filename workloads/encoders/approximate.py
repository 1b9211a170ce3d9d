"""Exact or approximate search of a served collection, the latter with a recall that is measured against exact search.

Exported with predictors of collections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from .inverted_lists import InvertedLists
from .search import exact_topk

LEAST_ROWS = 100_000
"""Below this number of rows search is exact: it takes milliseconds."""

SAMPLE = 200
"""Queries on which the recall is measured: the first that come."""


class Approximate:
    """Inverted lists with as many probes as a recall takes. A copy of the rows is in memory."""

    def __init__(self, rows: torch.Tensor) -> None:
        """Make 4 √N lists of the rows (N, d)."""
        self.lists = InvertedLists(rows, min(len(rows), round(4 * math.sqrt(len(rows)))))
        self._sample = rows[:0]
        self._chosen: dict[tuple[int, float], tuple[int, float]] = {}

    def search(self, queries: torch.Tensor, k: int, recall: float) -> tuple[torch.Tensor, torch.Tensor, float]:
        """The k best rows of each query, best first.

        The number of probes is the first of 1, 2, 4 ... with which the share of the k best rows that are found, over
        the first :data:`SAMPLE` queries of all calls, is at least ``recall``.

        Args:
            queries: (Q, d).
            k: at least 1.
            recall: above 0, below 1.

        Returns:
            Scores (Q, min(k, N)), rows of the same shape, -1 where too few were found, and the measured share.
        """
        real = queries[queries.any(1)]  # a query without words has a zero vector
        if len(self._sample) < SAMPLE and len(real):
            self._sample = torch.cat([self._sample, real[: SAMPLE - len(self._sample)]])
            self._chosen = {}
        if (k, recall) not in self._chosen:
            self._chosen[k, recall] = self._choose(k, recall)
        probes, measured = self._chosen[k, recall]
        return *self.lists.search(queries, k, probes), measured

    def _choose(self, k: int, recall: float) -> tuple[int, float]:
        """The number of probes, and the recall with it."""
        best = self.lists.row[exact_topk(self._sample, self.lists.rows, k)[1]]
        probes = 1
        while True:
            rows = self.lists.search(self._sample, k, probes)[1]
            measured = float(torch.isin(_pairs(best), _pairs(rows)).float().mean()) if len(best) else 1.0
            if measured >= recall or probes >= len(self.lists.centres):
                return probes, measured
            probes *= 2


class CollectionSearch:
    """Exact search of a collection, or approximate search of a large one. Its lists are made when first needed."""

    def __init__(self) -> None:
        self._approximate: Approximate | None = None

    def __call__(
        self, queries: torch.Tensor, rows: torch.Tensor | Iterable[torch.Tensor], count: int, k: int, recall: float
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Scores and rows (Q, min(k, N)), best first, and the measured recall, 1 of exact search.

        Args:
            queries: (Q, d).
            rows: (N, d), or its blocks in order; the same in all calls with a recall below 1.
            count: N.
            k: at least 1.
            recall: 1, or the least recall of approximate search, which begins at :data:`LEAST_ROWS` rows.

        Raises:
            ValueError: k is below 1.
        """
        if recall == 1 or count < LEAST_ROWS:
            return *exact_topk(queries, rows, k), 1.0
        if self._approximate is None:
            whole = rows if isinstance(rows, torch.Tensor) else torch.cat(list(rows))
            self._approximate = Approximate(whole.to(queries.device))
        return self._approximate.search(queries, k, recall)


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    """A number for each query and row, (Q, k); rows of -1 have none in common with others."""
    query = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    return torch.where(rows < 0, -1, rows * max(1, len(rows)) + query)


def check(recall: float, promised: bool) -> None:
    """Raise ValueError for a recall out of bounds, or below 1 together with a promised risk."""
    if not 0 < recall <= 1:
        raise ValueError(f"recall must be above 0 and at most 1, got {recall:g}")
    if recall < 1 and promised:
        raise ValueError("risk= holds for exact search, not for recall= below 1")
