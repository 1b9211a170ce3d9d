"""Calibration of success probabilities and the value of abstaining by them, batched for the bootstrap.

``confidence`` and ``success`` (0 or 1) are of one shape, (..., n): n queries, and before them any number of resamples.
Queries of equal confidence are indistinguishable, so each counts with their mean success. The risk of a
set of queries is its share of failures; coverage the share of queries that are answered, the most confident first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

FLOOR = 1e-7
"""Bound of probabilities away from 0 and 1 in a likelihood, so that no single query has an infinite loss."""

ABSTAINS = 2.0
"""A threshold above every confidence: no query is answered."""

_AT_ONCE = 2**20
"""Resampled queries that are measured at once: a measure holds some 100 bytes of each."""

Measure: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps confidence and success (..., n) to values (...,)."""


class Reliability(NamedTuple):
    """Bins of equal mass, the least confident first: mean confidence, mean success, queries; (..., bins)."""

    confidence: torch.Tensor
    success: torch.Tensor
    queries: torch.Tensor


def nll(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """``-ln`` of the probability of what happened, in nats, (..., n); probabilities within :data:`FLOOR` of 0 and 1."""
    p = confidence.double().clamp(FLOOR, 1 - FLOOR)
    return -torch.where(success > 0.5, p.log(), (-p).log1p()).to(confidence.dtype)


def brier(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """``(c - Z)²``, (..., n). Brier, 1950."""
    return (confidence - success).square()


def reliability(confidence: torch.Tensor, success: torch.Tensor, bins: int) -> Reliability:
    """Confidence against success in ``bins`` of equal mass, or one a query where there are fewer."""
    ordered, shared = _ordered(confidence, success)
    n = ordered.shape[-1]
    bins = max(1, min(bins, n))
    bin_of = (torch.arange(n, device=ordered.device) * bins // max(1, n)).expand_as(ordered)
    zeros = ordered.new_zeros(*ordered.shape[:-1], bins)
    sums = [zeros.scatter_add(-1, bin_of, side) for side in (ordered, shared, torch.ones_like(ordered))]
    count = sums[2]
    return Reliability(sums[0] / count.clamp(min=1), sums[1] / count.clamp(min=1), count)


def ece(confidence: torch.Tensor, success: torch.Tensor, bins: int = 15) -> torch.Tensor:
    """Expected calibration error, ``Σ_b n_b/n |mean confidence - mean success|``, bins of equal mass; (...,).

    Naeini et al., AAAI 2015, with the bins of Nguyen and O'Connor, EMNLP 2015. It is above 0 for true probabilities
    too, the more the fewer queries a bin has: see :func:`ece_interval`.
    """
    diagram = reliability(confidence, success, bins)
    gap = (diagram.confidence - diagram.success).abs() * diagram.queries
    return gap.sum(-1) / diagram.queries.sum(-1).clamp(min=1)


def ece_interval(
    confidence: torch.Tensor, success: torch.Tensor, bins: int, resamples: int, source: torch.Generator
) -> tuple[float, float]:
    """An interval that holds the calibration error of these bins with a probability of at least 95%.

    The error is ``Σ w_b |g_b|`` of the bins' true gaps g and shares w; :func:`ece` is ``Σ w_b |g_b + h_b|`` with the
    sampling errors h of the successes. Resampled queries carry h twice, so that nearly all their values lie above the
    true one. By the triangle inequality ``ece - error`` is at most ``Σ w_b |h_b|``, and by convexity at least
    ``Σ w_b s_b h_b`` with the signs s of g; the spread of that sum does not depend on the signs. h is drawn from
    successes of known probability, as in the consistency resampling of Bröcker and Smith (Weather and Forecasting,
    2007): the confidence or the bin's share, whichever varies more.

    Args:
        confidence: (n,).
        success: (n,).
        bins: as of :func:`ece`.
        resamples: how many; draws come from ``source``, which is on the CPU.
    """
    n = len(confidence)
    diagram = reliability(confidence, success, bins)
    share = diagram.queries / max(1, n)
    bin_of = torch.arange(n, device=confidence.device) * len(share) // max(1, n)
    observed = torch.empty_like(diagram.success[bin_of])
    observed[confidence.argsort(stable=True)] = diagram.success[bin_of]
    rate = torch.where((observed - 0.5).abs() < (confidence - 0.5).abs(), observed, confidence.to(observed.dtype))
    shares = []
    for count in _counts(resamples, n):
        drawn = (torch.rand(count, n, generator=source).to(rate.device) < rate).to(rate.dtype)
        shares.append(reliability(confidence.expand(count, n), drawn, bins).success)
    errors = (torch.cat(shares) - reliability(confidence, rate, bins).success).double() * share.double()
    value = float(ece(confidence, success, bins))
    below = float(errors.abs().sum(-1).quantile(0.975))
    above = float(errors.sum(-1).abs().quantile(0.95))
    return max(0.0, value - below), min(1.0, value + above)


def selective_risk(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """The risk of the i most confident queries, i = 1 to n, (..., n). El-Yaniv and Wiener, JMLR 2010."""
    _, shared = _ordered(confidence, success)
    failures = (1 - shared).flip(-1).cumsum(-1)
    return failures / torch.arange(1, failures.shape[-1] + 1, device=failures.device)


def aurc(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """Area under the risk-coverage curve: the mean of :func:`selective_risk`, (...,). Geifman et al., ICLR 2019."""
    return selective_risk(confidence, success).mean(-1)


def excess_aurc(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """:func:`aurc` less that of the best possible order, by success itself, (...,). Geifman et al., ICLR 2019."""
    return aurc(confidence, success) - aurc(success, success)


def auroc(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """Probability that a success has a higher confidence than a failure, a tie counting 1/2: (..., n) to (...).

    NaN without both. ``success`` may hold probabilities p: the pair i != j then has the weight p_i (1 - p_j).
    """
    ordered, order = confidence.sort(dim=-1, stable=True)
    wins = success.gather(-1, order).double()
    losses = 1 - wins
    group = torch.zeros_like(order)
    group[..., 1:] = (ordered[..., 1:] != ordered[..., :-1]).cumsum(-1)
    zeros = torch.zeros_like(wins)
    won, lost = (zeros.scatter_add(-1, group, side) for side in (wins, losses))
    same = (wins * losses).sum(-1)  # a query against itself
    pairs = won.sum(-1) * lost.sum(-1) - same
    return ((won * (lost.cumsum(-1) - lost / 2)).sum(-1) - same / 2) / pairs


def aurc_influences(confidence: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """Jackknife pseudo-values of :func:`aurc` for each query, shifted so that their mean is the area; (n,) to (n,).

    Resampling them estimates the spread of the area without recomputing the curve.
    """
    n = len(confidence)
    area = aurc(confidence, success)
    if n < 2:
        return area.expand(n)
    order = confidence.argsort(descending=True, stable=True)
    _, shared = _ordered(confidence, success)
    failure = (1 - shared).flip(-1).double()
    rank = torch.arange(1, n + 1, device=order.device, dtype=torch.float64)
    summed = failure.cumsum(0)
    before = (summed / rank).cumsum(0) - summed / rank
    # Without query j, those behind it move up by one rank, and its failure is not among theirs.
    behind = 1 / (rank - 1).clamp(min=1) * (rank > 1)
    after = [(part.flip(0).cumsum(0).flip(0) - part) for part in (summed * behind, behind)]
    left_out = (before + after[0] - failure * after[1]) / (n - 1)
    pseudo = n * area.double() - (n - 1) * left_out
    influences = torch.empty_like(pseudo)
    influences[order] = pseudo - pseudo.mean() + area.double()
    return influences.to(confidence.dtype)


def coverage_at_risk(confidence: torch.Tensor, success: torch.Tensor, risk: float) -> torch.Tensor:
    """The largest share of queries that can be answered at a risk of at most ``risk``, (...,); 0 where none can."""
    return _allowed(confidence, success, risk) / max(1, confidence.shape[-1])


def threshold_at_risk(confidence: torch.Tensor, success: torch.Tensor, risk: float) -> float:
    """The confidence below which to abstain: half-way between the last query answered and the next, (n,).

    :data:`ABSTAINS` where no share of the queries has so little risk, 0 where all of them together have.
    """
    allowed = _allowed(confidence, success, risk)
    ordered = confidence.sort(descending=True).values.double()
    ends = ordered[torch.stack([allowed - 1, allowed]).clamp(0, len(ordered) - 1)]
    # Read in one piece, whatever the count: how often the host waits must not depend on the values.
    count, last, following = torch.cat([allowed.double().view(1), ends]).tolist()
    if count == 0:
        return ABSTAINS
    return 0.0 if count == len(ordered) else (last + following) / 2


def bootstrap(
    measure: Measure, confidence: torch.Tensor, success: torch.Tensor, resamples: int, source: torch.Generator
) -> tuple[float, float]:
    """The 2.5% and 97.5% percentiles of a measure over resamples of the queries (Efron, 1979).

    Args:
        measure: of this module.
        confidence: (n,).
        success: (n,).
        resamples: how many; draws come from ``source``, which is on the CPU.
    """
    n = len(confidence)
    values = []
    for count in _counts(resamples, n):
        rows = torch.randint(n, (count, n), generator=source).to(confidence.device)
        values.append(measure(confidence[rows], success[rows]).double())
    every = torch.cat(values)
    low, high = every.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64, device=every.device)).tolist()
    return low, high


def _counts(resamples: int, n: int) -> list[int]:
    """The numbers of resamples of n queries that are measured together; the draws are those of all at once."""
    most = max(1, _AT_ONCE // max(1, n))
    return [min(most, resamples - first) for first in range(0, resamples, most)]


def _ordered(confidence: torch.Tensor, success: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Confidence ascending, and the success of each place: the mean over all queries of that confidence."""
    ordered, order = confidence.sort(dim=-1, stable=True)
    sorted_success = success.gather(-1, order).to(ordered.dtype)
    group = torch.zeros_like(order)
    group[..., 1:] = (ordered[..., 1:] != ordered[..., :-1]).cumsum(-1)
    zeros = torch.zeros_like(ordered)
    sums = zeros.scatter_add(-1, group, sorted_success)
    sizes = zeros.scatter_add(-1, group, torch.ones_like(ordered))
    return ordered, (sums / sizes.clamp(min=1)).gather(-1, group)


def _allowed(confidence: torch.Tensor, success: torch.Tensor, risk: float) -> torch.Tensor:
    """The most queries that can be answered at the risk, (...,): of equally confident ones all or none."""
    ordered = confidence.sort(dim=-1, descending=True).values
    risks = selective_risk(confidence, success)
    last = torch.ones_like(risks, dtype=torch.bool)
    last[..., :-1] = ordered[..., :-1] != ordered[..., 1:]
    places = torch.arange(1, risks.shape[-1] + 1, device=risks.device)
    # A mean of equal shares may be off by its last digit.
    return ((risks <= risk + 1e-6) & last).long().mul(places).amax(-1)
