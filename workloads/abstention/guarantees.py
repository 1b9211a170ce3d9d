"""Thresholds for answering with a guaranteed risk. NumPy only: exported with the predictors.

A model answers a query if its score is at least a threshold t. A calibration part of n queries, which nothing else has
seen, has a score and a loss in [0, 1] for each query. Two promises:

- ``ltt``, learn-then-test (Angelopoulos et al., "Learn then test", 2021; Annals of Applied Statistics 2025): with
  probability 1 - δ over the draw of the calibration part, the risk among the answered queries, E[loss | score >= t], is
  at most α. Queries have to be independent and of one distribution.
- ``crc``, conformal risk control (Angelopoulos et al., ICLR 2024): the expected loss of a query, which counts 0 where
  it is not answered, E[loss; score >= t], is at most α, averaged over the calibration part too. Queries have to be
  exchangeable. It is a share of all queries, not of the answered ones, and a mean: it says nothing of one calibration.

The risk among the answered is a ratio, whose numerator and denominator both depend on t. It is tested conditionally:
given which calibration queries reach t, their losses are independent with the mean E[loss | score >= t]. With N
answered queries and losses of 0 or 1 the number of failures is binomial, and ``P(Bin(N, α) <= failures)`` is a p-value
of "the risk at t exceeds α", given N and therefore without that condition too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPARE = 2
"""Without risks of a validation part the sequence starts with that many times the fewest answered queries."""


@dataclass(frozen=True, slots=True)
class Answering:
    """Queries with a score of at least ``threshold`` are answered: ``answered`` of ``queries`` calibration queries."""

    threshold: float
    answered: int
    queries: int

    @property
    def coverage(self) -> float:
        """The share of the calibration queries that are answered."""
        return self.answered / self.queries


@dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """Thresholds to be tested in their order, highest first, and what a validation part shows of them, (m,) each.

    They are fixed before the calibration part is looked at. ``shares`` of answered queries, ascending; ``risks`` among
    the answered ones, ``(losses + 1/2) / (N + 1)``, or NaN: where the model was trained on that part, they say nothing.
    Neither affects the promise, both where the sequence starts.
    """

    thresholds: NDArray[np.float64]
    shares: NDArray[np.float64]
    risks: NDArray[np.float64]

    @classmethod
    def of(
        cls, scores: NDArray[np.floating[Any]], losses: NDArray[np.floating[Any]] | None = None, points: int = 100
    ) -> Grid:
        """The quantiles of a validation part's scores (n,), at most ``points`` of them.

        The last one is the lowest score: a query that scores lower than all of them is not answered.
        """
        levels = np.linspace(1, 0, points + 1)[1:]
        finite = scores[np.isfinite(scores)].astype(np.float64)
        thresholds = np.unique(np.quantile(finite, levels, method="inverted_cdf") if len(finite) else finite)[::-1]
        counts, sums = answered(scores, np.zeros(len(scores)) if losses is None else losses, thresholds)
        risks = np.full(len(thresholds), np.nan) if losses is None else (sums + 0.5) / (counts + 1)
        return cls(thresholds, counts / max(1, len(scores)), risks)

    def start(self, queries: int, risk: float, delta: float) -> int:
        """Where the sequence starts: the threshold with the strongest expected evidence of a risk below ``risk``.

        By Chernoff's bound the p-value of N answered queries with risk r is about ``exp(-N kl(r, α))``. Without a
        validation part's risks it is the threshold with twice the answered queries that suffice without a failure.
        """
        below = self.risks < risk
        if below.any():
            return int(np.where(below, self.shares * divergence(np.where(below, self.risks, risk), risk), 0).argmax())
        least = _SPARE * fewest(risk, delta) / queries
        return min(len(self.shares) - 1, int(np.searchsorted(self.shares, least)))


def binomial_cdf(failures: NDArray[np.int64], trials: NDArray[np.int64], chance: float) -> NDArray[np.float64]:
    """P(Bin(trials, chance) <= failures) for each pair, (m,); ``chance`` in (0, 1)."""
    factorial = np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1, trials.max(initial=0) + 1)))])
    n = trials[:, None]
    i = np.arange(failures.max(initial=-1) + 1)
    ways = factorial[n] - factorial[i.clip(max=len(factorial) - 1)] - factorial[(n - i).clip(min=0)]
    terms = np.exp(ways + i * math.log(chance) + (n - i) * math.log1p(-chance))
    return np.where(failures < trials, (terms * (i <= failures[:, None])).sum(1).clip(max=1), 1.0)


def p_values(
    scores: NDArray[np.floating[Any]],
    losses: NDArray[np.floating[Any]],
    thresholds: NDArray[np.float64],
    risk: float,
    binary: bool,
) -> NDArray[np.float64]:
    """P-values of "the risk among queries with a score of at least t exceeds ``risk``", (m,); 1 where none is answered.

    Args:
        scores: of the calibration queries, (n,).
        losses: in [0, 1], (n,).
        thresholds: t, (m,).
        risk: α in (0, 1).
        binary: losses are 0 or 1: the exact binomial tail. Otherwise the bound of Hoeffding and Bentkus,
            ``min(exp(-N kl(mean, α)), e P(Bin(N, α) <= ceil(N mean)))`` (Bates et al., JACM 2021).
    """
    counts, sums = answered(scores, losses, thresholds)
    if binary:
        return binomial_cdf(np.rint(sums).astype(np.int64), counts, risk)
    hoeffding = np.exp(-counts * divergence(np.minimum(sums / np.maximum(counts, 1), risk), risk))
    bentkus = math.e * binomial_cdf(np.ceil(sums - 1e-9).astype(np.int64), counts, risk)
    return np.where(counts > 0, np.minimum(1, np.minimum(hoeffding, bentkus)), 1.0)


def answered(
    scores: NDArray[np.floating[Any]], losses: NDArray[np.floating[Any]], thresholds: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How many queries reach each threshold, and the sum of their losses, (m,) each."""
    order = np.argsort(scores, kind="stable")
    first = np.searchsorted(scores[order], thresholds, side="left")
    sums = np.concatenate([np.cumsum(losses[order][::-1].astype(np.float64))[::-1], np.zeros(1)])
    return len(scores) - first, sums[first]


def shown(p: NDArray[np.float64], start: int, delta: float) -> int | None:
    """The last hypothesis that a fixed sequence rejects: from ``start`` on, up to the first p-value above ``delta``.

    None if the first one is not rejected. The probability of any false rejection is at most ``delta``: there is one
    only if the first true hypothesis of the sequence has a p-value of at most ``delta``.
    """
    above = p[start:] > delta
    count = int(above.argmax()) if above.any() else len(above)
    return start + count - 1 if count else None


def learn_then_test(
    scores: NDArray[np.floating[Any]],
    losses: NDArray[np.floating[Any]],
    grid: Grid,
    risk: float,
    delta: float,
    binary: bool = True,
) -> Answering | None:
    """The lowest threshold that is shown to have a risk of at most ``risk``; None if there is none.

    The probability over the calibration part that it is returned although the risk among the answered queries is higher
    is at most ``delta``.

    Args:
        scores: of the calibration queries, (n,).
        losses: in [0, 1], (n,).
        grid: of other queries.
        risk: α in (0, 1).
        delta: δ in (0, 1). For several calls of which one is chosen by the result, δ divided by their number.
        binary: as of :func:`p_values`.
    """
    if not len(grid.thresholds) or not len(scores):
        return None
    p = p_values(scores, losses, grid.thresholds, risk, binary)
    last = shown(p, grid.start(len(scores), risk, delta), delta)
    if last is None:
        return None
    threshold = float(grid.thresholds[last])
    return Answering(threshold, int((scores >= threshold).sum()), len(scores))


def conformal_risk_control(
    scores: NDArray[np.floating[Any]], losses: NDArray[np.floating[Any]], risk: float
) -> Answering | None:
    """The lowest threshold with an expected loss over all queries of at most ``risk``; None with too few queries.

    The smallest t with ``(sum of losses of scores above t + 1) / (n + 1) <= risk``; queries above t are answered.

    Args:
        scores: of the calibration queries, (n,).
        losses: in [0, 1], (n,). A query that is not answered has none.
        risk: α in (0, 1).
    """
    n = len(scores)
    if 1 / (n + 1) > risk:
        return None
    order = np.argsort(-scores, kind="stable")
    descending = scores[order].astype(np.float64)
    total = np.concatenate([np.zeros(1), np.cumsum(losses[order].astype(np.float64))])
    # The first i queries are those above t = descending[i]; of equal scores all or none.
    cuts = np.concatenate([descending, [-np.inf]])
    distinct = np.concatenate([[True], cuts[1:] != cuts[:-1]])
    allowed = ((total + 1) / (n + 1) <= risk * (1 + 1e-12)) & distinct
    # Losses grow with i, so the allowed ones of the distinct cuts are the first ones.
    cut = cuts[np.flatnonzero(allowed)[-1]]
    threshold = float(np.nextafter(cut, np.inf))
    return Answering(threshold, int((scores >= threshold).sum()), n)


def fewest(risk: float, budget: float) -> int:
    """The fewest answered queries that can show a risk of at most ``risk``, if none of them is a failure."""
    return math.ceil(math.log(budget) / math.log1p(-risk) - 1e-9)


def needed(
    scores: NDArray[np.floating[Any]], losses: NDArray[np.floating[Any]], grid: Grid, risk: float, delta: float
) -> int | None:
    """About how many calibration queries would show the risk; None if no number would, by these queries.

    With a share q answered at a threshold with risk r < α it takes ``ln(1 / δ) / kl(r, α) / q`` by Chernoff's bound;
    the fewest over the thresholds. r is ``(losses + 1) / (N + 2)``, so that a few lucky queries promise nothing.
    """
    counts, sums = answered(scores, losses, grid.thresholds)
    risks = (sums + 1) / (counts + 2)
    below = (risks < risk) & (counts > 0)
    if not below.any():
        return None
    each = math.log(1 / delta) / divergence(risks[below], risk) * len(scores) / counts[below]
    return max(len(scores) + 1, math.ceil(float(each.min())))


def divergence(a: NDArray[np.float64], b: float) -> NDArray[np.float64]:
    """The divergence of Bernoulli variables ``a ln(a/b) + (1 - a) ln((1 - a)/(1 - b))`` in nats, (m,)."""
    a = np.asarray(a, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(a > 0, a * np.log(a / b), 0)
        right = np.where(a < 1, (1 - a) * np.log((1 - a) / (1 - b)), 0)
    divergence: NDArray[np.float64] = left + right
    return divergence
