"""Ranking metrics for implicit feedback, batched over users on the device.

Definitions. A user has a set of relevant items among its candidates (all items but the excluded ones); the list
is the k candidates of highest score, ties by lower item number; n is the number of relevant candidates. Every
function takes ``hits`` (U, k), True where the list's entry is relevant (False past the list's end), and ``n``
(U,), at least 1, and gives one value a user, (U,), float32 in [0, 1]. The thesis names them without a formula (E-4.M).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from workloads.sorting import ascending

RankingMetric: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_SEARCHED = 256  # items of a row from which on sorting pays
_SORTED = 8  # relevant items a row from which on it does
_COMPARED = {"cpu": 2**19, "cuda": 2**25}  # scores at once in auc: on a CPU what a core's cache holds


def precision(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Share of the k places that hit, Σ hits / k, (U,); k is the divisor also where the list is shorter."""
    return hits.float().mean(1)


def recall(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Share of the relevant items that are in the list, Σ hits / n, (U,)."""
    return hits.sum(1) / n


def f1(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Harmonic mean of the user's precision and recall, 2 Σ hits / (k + n), (U,)."""
    return 2 * hits.sum(1) / (hits.shape[1] + n)


def ndcg(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Binary gain, discount 1 / log2(rank + 1), over that of the user's own ideal list of min(k, n) hits, (U,)."""
    discount = 1 / torch.arange(2, hits.shape[1] + 2, device=hits.device).log2()
    ideal = discount.cumsum(0)[_ideal_hits(hits, n) - 1]
    return hits.float() @ discount / ideal


def map_min(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Average precision: the sum over the hits of the precision at the hit, over min(k, n), (U,)."""
    return (_precision_at(hits) * hits).sum(1) / _ideal_hits(hits, n)


def map_interp(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Mean over the hits of the interpolated precision (the best at this rank or a later hit), (U,); 0 without a hit.

    The form at the level of the thesis' table 3.3, which no min(k, n) form can reach.
    """
    at_hits = _precision_at(hits) * hits
    best_from_here = at_hits.flip(1).cummax(1).values.flip(1)
    return (best_from_here * hits).sum(1) / hits.sum(1).clamp(min=1)


def mrr(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """1 / rank of the first hit, ranks from 1, (U,); 0 without a hit."""
    return (hits.float() / _ranks(hits)).amax(1)


def hit(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """1 with at least one hit, else 0, (U,)."""
    return hits.any(1).float()


AT_K: Mapping[str, RankingMetric] = {
    metric.__name__: metric for metric in (precision, recall, f1, ndcg, map_min, map_interp, mrr, hit)
}
"""The metrics of a list of k, by name."""


def top_k(scores: torch.Tensor, k: int) -> torch.Tensor:
    """The items of the k highest scores of each row, best first, ties by lower item number.

    Args:
        scores: (U, I), float32; -inf ranks last.
        k: at most I.

    Returns:
        Items, (U, k), int64, the same for equal scores on every device.
    """
    if scores.device.type != "cpu" or not 0 < k < scores.shape[1]:
        return _top_keys(scores, k)
    # A top-k over floats is twice as fast, and promises an order only where no scores are equal.
    values, items = scores.topk(k + 1, dim=1)
    items = items[:, :k].contiguous()
    tied = (values[:, 1:] == values[:, :-1]).any(1)
    if tied.any():
        items[tied] = _top_keys(scores[tied], k)
    return items


def _top_keys(scores: torch.Tensor, k: int) -> torch.Tensor:
    # One integer a candidate: the score's bits in an order-preserving form above, the reversed item number below.
    # No two are equal, so that there is one answer, which a top-k over floats does not promise.
    bits = (scores + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 equal to 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    items = torch.arange(scores.shape[1], device=scores.device)
    return ((ordered << 32) | (scores.shape[1] - 1 - items)).topk(k, dim=1).indices


def auc(scores: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    """Share of (relevant, other) candidate pairs in the right order, ties 1/2; NaN where a user has no such pair.

    The sum over pairs of sign(x_i - x_j) may run over all candidates j, as the relevant ones cancel among
    themselves: AUC = 1/2 + sum / (2 pairs). Rows of many relevant items are sorted and searched, others compared.

    Args:
        scores: (U, I), float32; -inf is no candidate.
        relevant: (U, I), bool, candidates only.

    Returns:
        (U,), float32.
    """
    user, item = relevant.nonzero(as_tuple=True)
    n = relevant.sum(1)
    sorts = scores.device.type == "cpu" and scores.shape[1] > _SEARCHED and len(user) > _SORTED * len(scores)
    wins = _wins_by_search(scores, user, item, n) if sorts else _wins_by_comparison(scores, user, scores[user, item])
    n_excluded = (scores == -torch.inf).sum(1)
    pairs = n * (scores.shape[1] - n_excluded - n)
    return 0.5 + 0.5 * (wins - n * n_excluded) / pairs  # each relevant item has won against the excluded ones too


def sampled_auc(scores: torch.Tensor, relevant: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """As :func:`auc`, with the relevant items compared only with the other candidates among ``columns``.

    With columns that are drawn at random without regard to the user, a mean over users is unbiased.

    Args:
        scores: (U, I), float32; -inf is no candidate.
        relevant: (U, I), bool, candidates only.
        columns: (m,), int64, distinct items.

    Returns:
        (U,), float32.
    """
    user, item = relevant.nonzero(as_tuple=True)
    others = scores.index_select(1, columns).masked_fill_(relevant.index_select(1, columns), -torch.inf)
    wins = _wins_by_comparison(others, user, scores[user, item])
    n = relevant.sum(1)
    n_excluded = (others == -torch.inf).sum(1)
    return 0.5 + 0.5 * (wins - n * n_excluded) / (n * (len(columns) - n_excluded))


def _wins_by_comparison(scores: torch.Tensor, user: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The sum of sign(x_i - x_j) over all items j of a row and its pairs of ``user`` and score x_i, (U,), float32."""
    ones = scores.new_ones(scores.shape[1])
    rows = max(1, _COMPARED.get(scores.device.type, _COMPARED["cpu"]) // scores.shape[1])
    wins = scores.new_zeros(len(scores))
    for u, x in zip(torch.split(user, rows), torch.split(own, rows)):
        others = scores.index_select(0, u)
        wins.index_add_(0, u, others.sub_(x[:, None]).sign_() @ ones, alpha=-1)
    return wins


def _wins_by_search(scores: torch.Tensor, user: torch.Tensor, item: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """As :func:`_wins_by_comparison`, for the scores at (user, item): by searching for them in the sorted rows."""
    ordered = ascending(scores)
    column = torch.arange(len(user)) - (n.cumsum(0) - n)[user]
    own = scores.new_full((len(scores), int(n.max())), -torch.inf)
    own[user, column] = scores[user, item]
    lower = torch.searchsorted(ordered, own)
    not_higher = torch.searchsorted(ordered, own, right=True)
    balance = (lower + not_higher - scores.shape[1]).masked_fill_(torch.arange(own.shape[1]) >= n[:, None], 0)
    return balance.sum(1).to(scores.dtype)


def ranked(scores: torch.Tensor, excluded: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The lists of a block of users.

    Args:
        scores: (U, I), ranked in float32.
        excluded: (U, I), bool: no candidates.
        k: length of the lists.

    Returns:
        Scores (U, I), -inf where excluded, and lists (U, k), int64, -1 where candidates run out. A user with a
        candidate whose score is NaN has only such scores: NaN has no place in an order.
    """
    masked = scores.float().masked_fill(excluded, -torch.inf)
    masked.masked_fill_(masked.amax(1, keepdim=True).isnan(), torch.nan)
    items = top_k(masked, min(k, scores.shape[1]))
    items = items.masked_fill(masked.gather(1, items) == -torch.inf, -1)
    return masked, torch.nn.functional.pad(items, (0, k - items.shape[1]), value=-1)


def looked_up(
    masked: torch.Tensor, lists: torch.Tensor, relevant: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hits (U, k), bool, and scores (U, k) of the entries of lists, and the number of relevant candidates (U,)."""
    items = lists.clamp(min=0)
    ended = lists < 0
    hits = relevant.gather(1, items).masked_fill_(ended, False)
    return hits, masked.gather(1, items).masked_fill_(ended, -torch.inf), relevant.sum(1)


def of_lists(
    hits: torch.Tensor, listed: torch.Tensor, n: torch.Tensor, area: torch.Tensor, ks: Sequence[int]
) -> dict[str, torch.Tensor]:
    """All metrics, (U,) each, for what :func:`looked_up` returns, (U, k), (U, k) and (U,), and the :func:`auc` (U,).

    They are NaN where the first listed score is. Otherwise only an AUC can be NaN, where there is no pair to compare: a
    list of hits alone or without one, a user with relevant candidates only. A user without a relevant candidate has no
    defined value: leave those out.
    """
    n = n.clamp(min=1)
    values: dict[str, torch.Tensor] = {}
    for k in ks:
        values |= {f"{name}_at_{k}": metric(hits[:, :k], n) for name, metric in AT_K.items()}
        values[f"auc_at_{k}"] = auc(listed[:, :k], hits[:, :k])
    values["auc"] = area
    unranked = listed[:, 0].isnan()
    return {name: value.masked_fill(unranked, torch.nan) for name, value in values.items()}


def _ideal_hits(hits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return n.clamp(max=hits.shape[1])


def _ranks(hits: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, hits.shape[1] + 1, device=hits.device)


def _precision_at(hits: torch.Tensor) -> torch.Tensor:
    return hits.cumsum(1) / _ranks(hits)


def metric_names(ks: Sequence[int]) -> list[str]:
    """The keys of :func:`of_lists`, in its order."""
    return [f"{name}_at_{k}" for k in ks for name in (*AT_K, "auc")] + ["auc"]
