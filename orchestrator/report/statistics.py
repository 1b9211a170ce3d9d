"""Statistics of comparisons: mean and spread over seeds, tests over seeds and over units, Holm's correction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

TestName = Literal["welch", "permutation"]

CONFIDENCE = 0.95
RESAMPLES = 10_000
PERMUTATIONS = 200_000
"""If there are more ways than this to divide the seeds into two groups, they are sampled, else enumerated."""
RESAMPLED_FROM = 50
"""Number of units from which they are resampled. With fewer, signs are flipped: resampling would reject a true null
hypothesis at the .05 level in .49 of all cases with 2 units, in .11 with 8, in .08 with 15."""

NORMAL_FROM = 100_000
"""Number of units from which the distribution of the mean is taken to be normal. Drawing 10,000 resamples of so many
would take ten seconds, and their quantiles would differ from the normal ones by less than they vary with the seed."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean of n values; ``spread`` is the sample standard deviation (n - 1), None for one value."""

    n: int
    mean: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference a - b of two means, with its interval if the test has one; ``p`` is two-sided.

    If no test is possible, ``p`` is None and ``why`` is the reason; else ``test`` is the name of the test.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    test: str | None = None
    why: str | None = None


def summary(values: Sequence[float]) -> Summary:
    """Mean and spread of at least one value."""
    if min(values) == max(values):  # by division the mean of 0.1, 0.1 and 0.1 is not 0.1
        return Summary(len(values), float(values[0]), 0.0 if len(values) > 1 else None)
    mean = math.fsum(values) / len(values)
    return Summary(len(values), mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)))


def over_seeds(a: Sequence[float], b: Sequence[float], test: TestName) -> Difference:
    """Test two independent groups of seeds by Welch's t (Welch 1947) or a permutation test of the means.

    Welch's t is the default: with three seeds each a permutation test cannot give a p below 0.1.
    """
    value = summary(a).mean - summary(b).mean
    if min(len(a), len(b)) < 2:
        return Difference(value, why="n < 2")
    if not summary(a).spread and not summary(b).spread:
        return Difference(value, why="no spread")
    from scipy import stats

    if test == "welch":
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # the values of a group may be equal
            outcome = stats.ttest_ind(a, b, equal_var=False)
        interval = outcome.confidence_interval(CONFIDENCE)
        return Difference(value, float(interval.low), float(interval.high), float(outcome.pvalue), "Welch's t")
    ways = math.comb(len(a) + len(b), len(a))
    exact = ways <= PERMUTATIONS
    outcome = stats.permutation_test(
        (a, b),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=PERMUTATIONS,
        rng=0,
    )
    return Difference(
        value, p=float(outcome.pvalue), test="exact permutation" if exact else f"permutation, {PERMUTATIONS} samples"
    )


def over_units(a: Any, b: Any) -> Difference:
    """Paired test of two models, one seed each, over the same units (users, queries or pairs).

    ``a`` and ``b`` are arrays of one value a unit, in the same order. With :data:`RESAMPLED_FROM` units or more it is a
    paired bootstrap, with :data:`NORMAL_FROM` or more the normal distribution that it tends to. With fewer the signs of
    the differences are flipped, which is exact if these are symmetric about their mean, as they are under the null
    hypothesis. The result holds for these two models on other units, not for other seeds. The p value is twice the
    smaller share of means on one side of 0. With n < 14 units it is at least 2 / 2^n; with 5 units it is never below
    .05, and there is no interval.
    """
    import numpy as np

    pairs = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    pairs = pairs[np.isfinite(pairs)]
    if len(pairs) < 2:
        return Difference(float(pairs.mean()) if len(pairs) else math.nan, why="fewer than 2 common units")
    value = float(pairs.mean())
    if not pairs.any():
        return Difference(value, why="every unit is equal")
    few = len(pairs) < RESAMPLED_FROM
    means = subset_means(pairs) if few else resampled_means(pairs)
    side = min(int((means <= 0).sum()), int((means >= 0).sum()))
    p = min(1.0, 2 * (side + 1) / (len(means) + 1))
    tail = (1 - CONFIDENCE) / 2
    if not few:
        low, high = np.quantile(means, [tail, 1 - tail]).tolist()
        return Difference(value, low, high, p, f"{resampling(len(pairs))}, {len(pairs)} units")
    test = f"{sign_flips(len(pairs))}, {len(pairs)} units"
    below = lower_bound(-means[::-1], tail)
    return Difference(value, lower_bound(means, tail), None if below is None else -below, p, test)


def over_units_and_seeds(a: Any, b: Any) -> Difference:
    """Paired test of two methods over the same units and seeds: t, with the variances of both (Satterthwaite 1946).

    ``a`` and ``b`` are (seeds, units), with two seeds or more and some units. The result holds for other units and
    other seeds. With the variance ``u`` of a unit's mean over seeds, ``s`` of a seed's mean over units, and ``e`` of
    what is left, the mean of S seeds and U units has the variance ``u / U + s / S - e / (S U)``, where ``s / S`` counts
    if it is above ``e / (S U)``.
    """
    import numpy as np
    from scipy import stats

    pairs = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    seeds, units = pairs.shape
    if units < 2:
        return Difference(float(pairs.mean()) if units else math.nan, why="fewer than 2 common units")
    value = float(pairs.mean())
    if not pairs.any():
        return Difference(value, why="every unit is equal")
    of_units, of_seeds = pairs.mean(axis=0), pairs.mean(axis=1)
    rest = pairs - of_units - of_seeds[:, None] + value
    parts = [of_units.var(ddof=1) / units, of_seeds.var(ddof=1) / seeds]
    free = [units - 1, seeds - 1, (seeds - 1) * (units - 1)]
    parts.append((rest**2).sum() / free[2] / (seeds * units))
    if parts[1] > parts[2]:
        variance = parts[0] + parts[1] - parts[2]
        freedom = variance**2 / sum(part**2 / n for part, n in zip(parts, free))
    else:
        variance, freedom = parts[0], free[0]
    if not variance:
        return Difference(value, why="no spread")
    error = math.sqrt(variance)
    margin = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    p = 2 * float(stats.t.sf(abs(value) / error, freedom))
    return Difference(value, value - margin, value + margin, p, f"paired t over {seeds} seeds and {units} units")


def p_text(p: float, equals: str = "") -> str:
    """``p`` as it is printed, with ``equals`` before a value. No test here is exact in tails below 1e-10."""
    return "< 1e-10" if p < 1e-10 else f"{equals}{p:.2g}"


def standard_error(values: Any) -> float | None:
    """Standard error of the mean of one value a unit, without those that are not finite. None for fewer than two."""
    import numpy as np

    values = np.asarray(values, dtype=np.float64)
    values = values[np.isfinite(values)]
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def subset_means(values: Any) -> Any:
    """The means of all non-empty subsets of n values, or of as many drawn ones as resamples, ascending.

    Flipping the signs of a subset decreases, keeps or increases the sum if the subset's mean is above, at or below 0.
    The means divide the line into 2^n parts, each of which contains the centre of symmetry with equal probability
    (Hartigan, JASA 1969). So do the means of drawn subsets.
    """
    import numpy as np

    if 2 ** len(values) <= RESAMPLES:
        chosen = (np.arange(1, 2 ** len(values))[:, None] >> np.arange(len(values))) & 1
    else:
        chosen = np.random.default_rng(0).integers(2, size=(RESAMPLES, len(values)))
        chosen = chosen[chosen.any(axis=1)]
    sums = chosen @ values
    sums[np.abs(sums) <= 1e-12 * np.abs(values).sum()] = 0  # rounding errors
    return np.sort(sums / chosen.sum(axis=1))


def lower_bound(means: Any, risk: float) -> float | None:
    """The bound below which the true mean is with a probability of at most ``risk``, from :func:`subset_means`.

    None if there are too few units for such a bound.
    """
    allowed = int(risk * (len(means) + 1) + 1e-9)  # (1 - .75) * 2^2 is 1, whatever the rounding
    return float(means[allowed - 1]) if allowed else None


def sign_flips(units: int) -> str:
    """Name of what :func:`subset_means` does for so many units."""
    return "paired sign flips, exact" if 2**units <= RESAMPLES else f"paired sign flips, {RESAMPLES} drawn"


def resampling(units: int) -> str:
    """Name of what :func:`resampled_means` does for so many units."""
    return "paired bootstrap" if units < NORMAL_FROM else "paired normal approximation"


def resampled_means(values: Any, resamples: int = RESAMPLES) -> Any:
    """The means of ``resamples`` bootstrap samples of one value a unit, drawn in blocks of at most 32 MB.

    From :data:`NORMAL_FROM` units on, as many quantiles at equal distances of the normal distribution that those means
    tend to, ascending, at the cost of one pass over the values.
    """
    import numpy as np

    size = len(values)
    if size >= NORMAL_FROM:
        quantiles = [NormalDist().inv_cdf((place + 0.5) / resamples) for place in range(resamples)]
        return values.mean() + values.std() / math.sqrt(size) * np.array(quantiles)
    rng = np.random.default_rng(0)
    rows = max(1, 4_000_000 // size)
    drawn = (rng.integers(size, size=(min(rows, resamples - done), size)) for done in range(0, resamples, rows))
    return np.concatenate([values[indices].mean(axis=1) for indices in drawn])


def holm(values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down correction of p values, in their order."""
    adjusted = [0.0] * len(values)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = least
    return adjusted
