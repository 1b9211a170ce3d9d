"""Power of a comparison over seeds: the difference that it detects, and the seeds that a difference needs.

Both are for Welch's t-test of two groups at the level :data:`LEVEL`, two-sided and not corrected for further
comparisons, with the spreads that were observed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orchestrator.report.statistics import Summary

LEVEL, POWER = 0.05, 0.8
MOST = 1000
"""Number of seeds beyond which a difference counts as undetectable."""


@dataclass(frozen=True, slots=True)
class Power:
    """``detectable`` is the difference that is found with probability :data:`POWER`, None with fewer than two seeds.

    ``needed`` is the number of seeds in each group with which the observed difference would be found, at most
    :data:`MOST` + 1, which means more.
    """

    detectable: float | None
    needed: int


def pooled_spread(groups: Iterable[Summary]) -> float | None:
    """Standard deviation over seeds within the groups, from those with two or more. None if there is none."""
    several = [group for group in groups if group.spread is not None]
    freedom = sum(group.n - 1 for group in several)
    if not freedom:
        return None
    return math.sqrt(math.fsum((group.n - 1) * (group.spread or 0.0) ** 2 for group in several) / freedom)


def power(a: Summary, b: Summary, pooled: float | None) -> Power | None:
    """Power of the comparison of two groups. A group of one seed is taken to have the ``pooled`` spread.

    None where no spread is known, or none was observed.
    """
    spreads = [pooled if group.spread is None else group.spread for group in (a, b)]
    variances = [spread**2 for spread in spreads if spread is not None]
    if len(variances) < 2 or not sum(variances):
        return None

    def is_detected(difference: float, seeds: tuple[int, int]) -> bool:
        parts = [variance / n for variance, n in zip(variances, seeds)]
        freedom = sum(parts) ** 2 / sum(part**2 / (n - 1) for part, n in zip(parts, seeds))
        return probability(difference / math.sqrt(sum(parts)), freedom) >= POWER

    detectable = None
    if min(a.n, b.n) > 1:
        detectable = _least(lambda difference: is_detected(difference, (a.n, b.n)), math.sqrt(sum(variances)))
    difference = abs(a.mean - b.mean)
    needed = MOST + 1
    if difference:
        needed = 2 + bisect_left(range(2, MOST + 1), True, key=lambda n: is_detected(difference, (n, n)))
    return Power(detectable, needed)


def probability(shift: float, freedom: float) -> float:
    """Probability that the two-sided t-test rejects when the true difference is ``shift`` standard errors."""
    import numpy as np
    from scipy import stats

    # The mean over the spread's distribution of the normal probability; SciPy's noncentral t returns NaN at times.
    nodes, weights = np.polynomial.legendre.leggauss(100)
    ratios = np.sqrt(stats.chi2.ppf((nodes + 1) / 2, freedom) / freedom)
    critical = stats.t.ppf(1 - LEVEL / 2, freedom) * ratios
    return float(weights @ (stats.norm.sf(critical - shift) + stats.norm.cdf(-critical - shift)) / 2)


def _least(holds: Callable[[float], bool], scale: float) -> float:
    """The least positive number for which ``holds`` is true, to four digits."""
    high = scale
    while not holds(high):
        high *= 2
    low = 0.0
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
