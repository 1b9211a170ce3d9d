"""Metrics of ranked lists with graded relevance, batched over queries on the device.

Definitions, those of trec_eval and BEIR. A query has judged documents with grades, relevant ones above 0, and a list of
candidates, which may hold some of the relevant ones only; ideal gain, recall and average precision count all of them.
The list is ordered by score, ties by place among the candidates, and what is not judged has grade 0. Lists and
judgements of several lengths are blocks, filled up with scores of -inf and grades of 0.

Each function of one measure takes ``ranked`` (Q, k), the grades in the order of the list, and ``judged`` (Q, J), the
grades of all judged documents in any order, and gives one value a query, (Q,), float32 in [0, 1], 0 where nothing is
relevant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from workloads.metrics import ranking

ListMetric: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def ndcg(ranked: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
    """Discounted gain over that of the ideal list of k, (Q,); gain = grade, discount 1 / log2(rank + 1).

    Järvelin and Kekäläinen, TOIS 2002, in the form of trec_eval's ``ndcg_cut``.
    """
    ideal = discounted_gain(ideal_order(judged, ranked.shape[1]))
    return _over(discounted_gain(ranked), ideal)


def mrr(ranked: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
    """1 / rank of the first relevant document, ranks from 1, (Q,); 0 without one in the list."""
    return ranking.mrr(ranked > 0, _relevant(judged))


def recall(ranked: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
    """Share of the relevant documents that are in the list, (Q,)."""
    return _over((ranked > 0).sum(1).float(), _relevant(judged).float())


def success(ranked: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
    """1 with a relevant document in the list, else 0, (Q,)."""
    return ranking.hit(ranked > 0, _relevant(judged))


def average_precision(ranked: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
    """Sum of the precision at each relevant document of the list, over the number of relevant documents, (Q,)."""
    hits = ranked > 0
    precision = hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1, device=hits.device)
    return _over((precision * hits).sum(1), _relevant(judged).float())


AT_K: Mapping[str, ListMetric] = {metric.__name__: metric for metric in (ndcg, mrr, recall, success)}
"""The measures of the first k of a list, by name."""


def ranked_grades(scores: torch.Tensor, grades: torch.Tensor) -> torch.Tensor:
    """The grades in the order of the list.

    Args:
        scores: (Q, C); -inf is no candidate.
        grades: of the candidates, (Q, C).

    Returns:
        (Q, C), with 0 past the list's end.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    return grades.masked_fill(scores == -torch.inf, 0).gather(1, order)


def first(ranked: torch.Tensor, k: int) -> torch.Tensor:
    """The first k grades of each list, (Q, k), filled up with 0: a measure at k counts what a shorter list lacks."""
    return torch.nn.functional.pad(ranked[:, :k], (0, max(0, k - ranked.shape[1])))


def discounted_gain(ranked: torch.Tensor) -> torch.Tensor:
    """Sum of grade / log2(rank + 1), (Q,)."""
    discounts = 1 / torch.arange(2, ranked.shape[1] + 2, device=ranked.device).log2()
    return ranked.float() @ discounts


def ideal_order(judged: torch.Tensor, k: int) -> torch.Tensor:
    """The k highest grades, best first, (Q, k), filled up with 0."""
    best = judged.topk(min(k, judged.shape[1]), dim=1).values
    return torch.nn.functional.pad(best, (0, k - best.shape[1]))


def per_query(
    scores: torch.Tensor, grades: torch.Tensor, judged: torch.Tensor, ks: Sequence[int] = (10,)
) -> dict[str, torch.Tensor]:
    """Every measure of :data:`AT_K` at every k, and ``map`` of the whole list.

    Args:
        scores: (Q, C); -inf is no candidate.
        grades: of the candidates, (Q, C).
        judged: grades of all judged documents, (Q, J); J may be 0.
        ks: lengths; a k above the number of candidates is allowed.

    Returns:
        ``ndcg_at_10`` and so on to (Q,), float32, NaN for a query with a score that is NaN. Leave queries without a
        relevant document out of means.
    """
    ranked = ranked_grades(scores, grades)
    values = {f"{name}_at_{k}": metric(first(ranked, k), judged) for k in ks for name, metric in AT_K.items()}
    values["map"] = average_precision(ranked, judged)
    return {name: where_ordered(value, scores) for name, value in values.items()}


def where_ordered(values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The values (Q,), NaN where one of the scores (Q, C) is: NaN has no place in an order."""
    return values.masked_fill(scores.isnan().any(1), torch.nan)


def _relevant(judged: torch.Tensor) -> torch.Tensor:
    return (judged > 0).sum(1)


def _over(value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """``value / of``, 0 where ``of`` is."""
    return torch.where(of > 0, value / of.clamp(min=torch.finfo(value.dtype).tiny), 0.0)
