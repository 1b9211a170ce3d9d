"""Is the difference real: mean and spread over seeds, tests over seeds and over units, Holm's correction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

TestName = Literal["welch", "permutation"]

CONFIDENCE = 0.95
RESAMPLES = 10_000
PERMUTATIONS = 200_000
"""More ways than this to deal the seeds into two groups are sampled, not counted out."""


@dataclass(frozen=True, slots=True)
class Summary:
    """``spread`` is the sample standard deviation (n - 1); None below two values."""

    n: int
    mean: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """``value`` is a - b of the means, with an interval where the test gives one; ``p`` is two-sided.

    ``p`` is None where nothing can be tested, and ``why`` says why; else ``test`` names the test.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    test: str | None = None
    why: str | None = None


def summary(values: Sequence[float]) -> Summary:
    """Of at least one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Summary(len(values), mean, None)
    return Summary(len(values), mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)))


def over_seeds(a: Sequence[float], b: Sequence[float], test: TestName) -> Difference:
    """Two independent groups of seeds: Welch's t (Welch 1947), or the permutation test of the means' difference.

    Welch's t is the default: with three seeds each no permutation test can fall below p = 0.1.
    """
    value = summary(a).mean - summary(b).mean
    if min(len(a), len(b)) < 2:
        return Difference(value, why="n < 2")
    if not summary(a).spread and not summary(b).spread:
        return Difference(value, why="no spread")
    from scipy import stats

    if test == "welch":
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # one side may be all alike
            found = stats.ttest_ind(a, b, equal_var=False)
        interval = found.confidence_interval(CONFIDENCE)
        return Difference(value, float(interval.low), float(interval.high), float(found.pvalue), "Welch's t")
    ways = math.comb(len(a) + len(b), len(a))
    exact = ways <= PERMUTATIONS
    found = stats.permutation_test(
        (a, b),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=PERMUTATIONS,
        rng=0,
    )
    return Difference(
        value, p=float(found.pvalue), test="exact permutation" if exact else f"permutation, {PERMUTATIONS} samples"
    )


def over_units(a: Any, b: Any) -> Difference:
    """One seed each, the same users, queries or pairs: paired bootstrap of the mean difference over the units.

    ``a`` and ``b`` are arrays of one value a unit, in the same order. It tells these two models apart on other
    units; it knows nothing of other seeds. The p value is twice the smaller share of resamples on one side of 0.
    """
    import numpy as np

    pairs = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    pairs = pairs[np.isfinite(pairs)]
    if len(pairs) < 2:
        return Difference(float(pairs.mean()) if len(pairs) else math.nan, why="fewer than 2 common units")
    value = float(pairs.mean())
    if not pairs.any():
        return Difference(value, why="every unit is equal")
    means = resampled_means(pairs)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    side = min(int((means <= 0).sum()), int((means >= 0).sum()))
    p = min(1.0, 2 * (side + 1) / (RESAMPLES + 1))
    return Difference(value, float(low), float(high), p, f"paired bootstrap, {len(pairs)} units")


def resampled_means(values: Any, resamples: int = RESAMPLES, seed: int = 0) -> Any:
    """The means of ``resamples`` bootstrap samples of an array of one value a unit, within 32 MB of draws at a time."""
    import numpy as np

    rng = np.random.default_rng(seed)
    size, rows = len(values), max(1, 4_000_000 // len(values))
    drawn = (rng.integers(size, size=(min(rows, resamples - done), size)) for done in range(0, resamples, rows))
    return np.concatenate([values[indices].mean(axis=1) for indices in drawn])


def holm(values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down correction of p values, in their order."""
    adjusted, least = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = least
    return adjusted
