"""A test of whether incoming queries are exchangeable with the calibration queries, by their scores. NumPy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_DRAWS = 399
_MOST = 20_000  # queries of a side; further ones add no power against the other, smaller side


class Drift(NamedTuple):
    """Largest difference of the two distribution functions, and its p-value."""

    distance: float
    p: float


def drift(calibration: NDArray[np.floating[Any]], incoming: NDArray[np.floating[Any]], seed: int = 0) -> Drift | None:
    """The two-sample test of Kolmogorov and Smirnov, with its p-value from random permutations; None without queries.

    If the n + m scores are exchangeable, ``P(p <= a) <= a`` for every a, also with ties, which are ordered at random: a
    permutation test is exact with any number of permutations, of which the observed one is one (Phipson and Smyth,
    2010). It does not see a change of the losses at equal scores.

    Args:
        calibration: scores, (n,).
        incoming: scores, (m,).
        seed: of the order of ties and the permutations.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    first, second = (_at_most(side[~np.isnan(side)], random) for side in (calibration, incoming))
    n = len(first)
    m = len(second)
    if not n or not m:
        return None
    pooled = np.concatenate([first, second])
    order = np.lexsort([random.random(n + m), pooled])
    own = np.flatnonzero(order < n)
    observed = _distance(own, m)
    drawn = [_distance(np.sort(random.choice(n + m, n, replace=False, shuffle=False)), m) for _ in range(_DRAWS)]
    as_far = sum(value >= observed - 1e-12 for value in drawn)
    return Drift(observed, (1 + as_far) / (1 + _DRAWS))


def _distance(places: NDArray[np.int64], others: int) -> float:
    """The largest difference, from the ascending places (n,) of one side among all n + ``others`` scores."""
    n = len(places)
    rank = np.arange(n)
    share = (places - rank) / others  # of the other side before each place
    return float(max((share - rank / n).max(), ((rank + 1) / n - share).max()))


def _at_most(scores: NDArray[np.floating[Any]], random: np.random.Generator) -> NDArray[np.floating[Any]]:
    return scores if len(scores) <= _MOST else random.choice(scores, _MOST, replace=False)
