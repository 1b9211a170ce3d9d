"""Metrics of rankings by the model, by BM25, and by their interpolation."""

from __future__ import annotations

import numpy as np
import torch

from workloads.contract import Columns, Evaluation
from workloads.metrics.retrieval import first, ndcg, per_query, ranked_grades
from workloads.scores import standardised
from workloads.text_ranker.dataset import Lists

CUTOFFS = (10, 100)
"""The k of every metric at k. Except for the smallest, those beyond the number of candidates are omitted."""

WEIGHTS = tuple(step / 20 for step in range(21))
"""Candidate values of ``bm25_weight``."""


class RankingEvaluator:
    """Computes metrics from scores of the candidates of ``lists``, at most ``depth`` per query."""

    def __init__(self, lists: Lists, device: torch.device, depth: int, bm25: bool = True) -> None:
        self.lists = lists
        self._first_stage = "bm25_" if bm25 else "first_stage_"
        self.cutoffs = [k for k in CUTOFFS if k <= max(depth, CUTOFFS[0])]
        self.bm25, self.grades, self.judged = (
            torch.from_numpy(np.ascontiguousarray(side)).to(device) for side in (lists.bm25, lists.grades, lists.judged)
        )

    def evaluation(self, scores: torch.Tensor, weight: float, units: bool) -> Evaluation:
        """Metrics of the model's scores (Q, C), of BM25's (``bm25_...``) and of the interpolated ones (``fused_...``).

        Those of another first stage begin with ``first_stage_``. ``no_candidates`` is the share of queries for which it
        returns nothing. They count as 0.
        """
        systems = {"": scores, self._first_stage: self.bm25, "fused_": interpolated(scores, self.bm25, weight)}
        values = {
            f"{prefix}{name}": column.cpu().numpy()
            for prefix, system in systems.items()
            for name, column in per_query(system, self.grades, self.judged, self.cutoffs).items()
        }
        metrics = {name: float(column.mean(dtype=np.float64)) for name, column in values.items()}
        metrics["bm25_weight"] = weight
        metrics["no_candidates"] = float((self.lists.docs < 0).all(1).mean())
        rows: Columns = {"id": self.lists.queries, **values} if units else {}
        return Evaluation(metrics, rows)

    def best_weight(self, scores: torch.Tensor) -> float:
        """The weight of :data:`WEIGHTS` with the highest mean NDCG@10; the smallest of equal ones."""
        means = [
            ndcg(first(ranked_grades(interpolated(scores, self.bm25, weight), self.grades), 10), self.judged).mean()
            for weight in WEIGHTS
        ]
        return WEIGHTS[int(torch.stack(means).argmax())]


def interpolated(scores: torch.Tensor, bm25: torch.Tensor, weight: float) -> torch.Tensor:
    """``(1 - w) z(scores) + w z(bm25)``, where z standardises over the query's candidates, (Q, C).

    Args:
        scores: (Q, C), -inf for padding.
        bm25: (Q, C), -inf for padding.
        weight: w in [0, 1].
    """
    mixed = (1 - weight) * standardised(scores) + weight * standardised(bm25)
    return mixed.masked_fill(bm25 == -torch.inf, -torch.inf)
