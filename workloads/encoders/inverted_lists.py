"""Approximate search for the rows with the highest inner products: rows in lists by their nearest centre (IVF).

Jégou, Douze and Schmid, 2011, without compression: the lists of the centres nearest to a query are searched exactly.
Exported with predictors of collections.
"""

from __future__ import annotations

import torch

from .lloyd import lloyd

_SAMPLE = 64
"""Rows for each list from which the centres are made."""

_AT_ONCE = 2**15
"""Rows whose lists are determined at once."""

_CANDIDATES = 2**22
"""Candidates of queries that are held at once: 50 MB of scores and rows."""


class InvertedLists:
    """Rows ordered by list; a copy of the rows is in memory."""

    def __init__(self, rows: torch.Tensor, lists: int) -> None:
        """Make the lists, from a random sample of rows, the first of which are the centres' start.

        Args:
            rows: (N, d).
            lists: number of lists, from 1 to N.

        Raises:
            ValueError: the number of lists is out of its bounds.
        """
        if not 1 <= lists <= len(rows):
            raise ValueError(f"lists must be from 1 to the {len(rows)} rows, got {lists}")
        generator = torch.Generator().manual_seed(0)
        sample = torch.randperm(len(rows), generator=generator)[: _SAMPLE * lists]
        drawn = rows[sample.to(rows.device)]
        self.centres, _ = lloyd(drawn, drawn[:lists])
        half = self.centres.square().sum(1) / 2
        nearest = torch.cat([(part @ self.centres.T - half).argmax(1) for part in torch.split(rows, _AT_ONCE)])
        self.row = nearest.argsort(stable=True)
        self.rows = rows[self.row]
        self.ends = torch.bincount(nearest, minlength=lists).cumsum(0).tolist()
        self._half = half

    def search(self, queries: torch.Tensor, k: int, probes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k best rows among the lists of each query's ``probes`` nearest centres, best first.

        With as many probes as lists the search is exact. Ties are in any order.

        Args:
            queries: (Q, d).
            k: at least 1.
            probes: at least 1.

        Returns:
            Scores (Q, min(k, N)) and rows of the same shape; -inf and -1 where the lists have fewer rows.

        Raises:
            ValueError: k or probes is below 1.
        """
        if min(k, probes) < 1:
            raise ValueError(f"k and probes must be at least 1, got {k} and {probes}")
        k = min(k, len(self.rows))
        probes = min(probes, len(self.centres))
        parts = [self._search(part, k, probes) for part in torch.split(queries, max(1, _CANDIDATES // (probes * k)))]
        return torch.cat([values for values, _ in parts]), torch.cat([rows for _, rows in parts])

    def _search(self, queries: torch.Tensor, k: int, probes: int) -> tuple[torch.Tensor, torch.Tensor]:
        probed = (queries @ self.centres.T - self._half).topk(probes, dim=1).indices
        scores = queries.new_full((len(queries), probes, k), -torch.inf)
        rows = torch.full((len(queries), probes, k), -1, dtype=torch.int64, device=queries.device)
        order = probed.flatten().argsort(stable=True)
        counts = torch.bincount(probed.flatten(), minlength=len(self.centres)).tolist()
        asked = 0
        for number, count in enumerate(counts):
            pairs = order[asked : asked + count]
            asked += count
            first = self.ends[number - 1] if number else 0
            length = self.ends[number] - first
            if not count or not length:
                continue
            query, probe = pairs // probes, pairs % probes
            best = (queries[query] @ self.rows[first : first + length].T).topk(min(k, length), dim=1)
            scores[query, probe, : best.values.shape[1]] = best.values
            rows[query, probe, : best.values.shape[1]] = self.row[first + best.indices]
        values, places = scores.flatten(1).topk(k, dim=1)
        return values, rows.flatten(1).gather(1, places)
