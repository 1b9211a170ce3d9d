"""Which candidate becomes the negative, where the model decides: DNS, AOBPR and BNS, one user at a time.

Thesis 4.5.1.2 and algorithm 2. Scores are float32, what is made of them float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.recommender.sequential.compiled import Int, Real, compiled, inlined
from workloads.recommender.sequential.draws import Floats, Ints, Pairs, has

_BITS, _DIGITS = 11, 2**11
"""Of the radix sort."""

_COUNTED = 256
"""Candidates up to which F is counted for each of them; beyond it all scores are sorted (measured)."""

UNROLLED = 8
"""Dimensions that :func:`score_all` takes at once; the mirrored item table has a multiple of them."""


class Bayes(NamedTuple):
    """The Bayesian sampler's parameters."""

    prior: Floats
    """P_fn(l), (G, I), one row for each group of users; (0, 0): .04 throughout."""
    group: Ints
    """(U,), the users' rows of ``prior``."""
    weight: float
    """λ of (4.24)."""
    posterior: bool
    """The criterion (4.29), the largest posterior of a true negative, in place of the smallest risk (4.26)."""
    oracle: bool
    """Whether P_fn is .64 for what the truth has (4.5.2.5)."""


@inlined
def hardest(W: Floats, H: Floats, user: Int, candidates: Ints, b: Int, count: Int) -> Int:
    """Of row b's candidates that with the highest score, the first of equals: DNS, thesis 4.5.1.2 with E-4.D."""
    w = W[np.uint64(user)]
    best, chosen = np.float32(-np.inf), candidates[b, 0]
    for c in range(count):
        h = H[np.uint64(candidates[b, c])]
        score = np.float32(0)
        for k in range(len(w)):
            score += w[k] * h[k]
        if score > best:
            best, chosen = score, candidates[b, c]
    return np.int64(chosen)


@compiled
def score_all(w: Floats, mirror: Floats, scores: Floats) -> None:
    """``scores`` (I,) of all items; ``mirror`` is the item table with a dimension in each row, padded with zeros."""
    scores[:] = 0
    for k in range(0, len(w), UNROLLED):
        a, b, c, d, e, f, g, h = (
            mirror[k],
            mirror[k + 1],
            mirror[k + 2],
            mirror[k + 3],
            mirror[k + 4],
            mirror[k + 5],
            mirror[k + 6],
            mirror[k + 7],
        )
        left = len(w) - k
        wa = w[k]
        wb = w[k + 1] if left > 1 else np.float32(0)
        wc = w[k + 2] if left > 2 else np.float32(0)
        wd = w[k + 3] if left > 3 else np.float32(0)
        we = w[k + 4] if left > 4 else np.float32(0)
        wf = w[k + 5] if left > 5 else np.float32(0)
        wg = w[k + 6] if left > 6 else np.float32(0)
        wh = w[k + 7] if left > 7 else np.float32(0)
        for item in range(len(scores)):
            scores[item] += (wa * a[item] + wb * b[item] + wc * c[item] + wd * d[item]) + (
                we * e[item] + wf * f[item] + wg * g[item] + wh * h[item]
            )


@compiled
def ranked(scores: Floats, observed: Pairs, user: Int, place: Int) -> Int:
    """The unobserved item at ``place`` from 0, best first, ties by index. Destroys the scores.

    The score is found by bisection over the 2^32 values of a float32: 32 passes that count, none that sorts.
    """
    for row in range(observed.indptr[user], observed.indptr[user + 1]):
        scores[observed.items[row]] = -np.inf
    keys = scores.view(np.int32)
    for item in range(len(keys)):
        # As integers, floats ascend where they are positive and descend where they are negative.
        keys[item] ^= (keys[item] >> np.int32(31)) & np.int32(0x7FFFFFFF)
    low, high = np.int64(-(2**31)), np.int64(2**31 - 1)
    while low < high:
        middle = (low + high + 1) >> 1
        if _at_least(keys, np.int32(middle)) > place:
            low = middle
        else:
            high = middle - 1
    wanted = np.int32(low)
    above = _at_least(keys, wanted) - _equal(keys, wanted)
    for item in range(len(keys)):
        if keys[item] == wanted:
            if above == place:
                return item
            above += 1
    return 0


@compiled
def _at_least(keys: Ints, least: Int) -> Int:
    count = np.int32(0)
    for item in range(len(keys)):
        count += np.int32(1) if keys[item] >= least else np.int32(0)
    return np.int64(count)


@compiled
def _equal(keys: Ints, wanted: Int) -> Int:
    count = np.int32(0)
    for item in range(len(keys)):
        count += np.int32(1) if keys[item] == wanted else np.int32(0)
    return np.int64(count)


@compiled
def _no_higher(scores: Floats, score: Real) -> Real:
    """How many scores are at most ``score``; as a float32, exact up to 2^24, which vectorises best."""
    count = np.float32(0)
    for item in range(len(scores)):
        count += np.float32(1) if scores[item] <= score else np.float32(0)
    return np.float64(count)


@compiled
def _all_no_higher(scores: Floats, counts: Floats, order: Ints, spare: Ints) -> None:
    """The same for every score at once, ``counts`` (I,), by a radix sort; ``order`` and ``spare``: (I,), scratch."""
    keys, starts = scores.view(np.uint32), np.empty(_DIGITS, np.int32)
    for item in range(len(order)):
        order[item] = item
    for shift in range(0, 32, _BITS):
        starts[:] = 0
        for item in range(len(keys)):
            starts[_digit(keys[item], shift)] += 1
        first = np.int32(0)
        for digit in range(_DIGITS):
            starts[digit], first = first, first + starts[digit]
        for place in range(len(order)):
            item = order[place]
            digit = _digit(keys[item], shift)
            spare[starts[digit]] = item
            starts[digit] += 1
        order, spare = spare, order
    last = len(order)
    for place in range(len(order) - 1, -1, -1):
        if place + 1 < len(order) and scores[order[place]] < scores[order[place + 1]]:
            last = place + 1
        counts[order[place]] = last


@inlined
def _digit(bits: Int, shift: Int) -> Int:
    """Some bits of a float32 in a form that ascends with it."""
    ascending = bits ^ (np.uint32(0xFFFFFFFF) if bits >> np.uint32(31) else np.uint32(0x80000000))
    return (ascending >> np.uint32(shift)) & np.uint32(_DIGITS - 1)


@inlined
def unbias(F: Real, prior: Real) -> Real:
    """P(tn | x), (4.14); 1 - prior where both its terms vanish (E-4.14)."""
    negative = (1 - F) * (1 - prior)
    total = negative + F * prior
    return negative / total if total > 0 else 1 - prior


@compiled
def bayesian(
    scores: Floats,
    observed: Pairs,
    truth: Pairs,
    bayes: Bayes,
    user: Int,
    item: Int,
    candidates: Ints,
    b: Int,
    count: Int,
) -> Int:
    """Algorithm 2: of row b's candidates that of smallest conditional risk, the first of equals.

    Destroys the scores of observed items. F is the share of the user's unobserved items that score no higher, over
    one more than their number (E-4.14, E-4.15). Few candidates are counted one by one, many together.
    """
    positive = scores[item]
    first, last = observed.indptr[user], observed.indptr[user + 1]
    for row in range(first, last):
        scores[observed.items[row]] = np.inf
    n = len(scores) - (last - first)
    best, chosen, limit = np.inf, candidates[b, 0], -np.inf
    many = count > _COUNTED
    places = np.empty(len(scores) if many else 0, np.float32)
    if many:
        _all_no_higher(scores, places, np.empty(len(scores), np.int32), np.empty(len(scores), np.int32))
    for c in range(count):
        candidate = candidates[b, c]
        score = scores[candidate]
        if score < limit:
            continue
        below: Real = places[candidate] if many else _no_higher(scores, score)
        prior: Real = 0.04
        if bayes.oracle and has(truth, user, np.int64(candidate)):
            prior = 0.64
        elif bayes.prior.size:
            prior = np.float64(bayes.prior[bayes.group[user], candidate])
        signal = unbias(below / (n + 1), prior)
        if bayes.posterior:
            risk = -signal
        else:
            info = 1 / (1 + math.exp(np.float64(positive) - np.float64(score)))
            risk = info * (1 - (1 + bayes.weight) * signal)
        if risk < best:
            best, chosen = risk, candidate
            if not bayes.posterior and -bayes.weight < best < 0:
                # Below it not even -λ info, the risk of a certain negative, is less than the best.
                limit = np.float64(positive) - math.log(-bayes.weight / best - 1)
    return np.int64(chosen)


@inlined
def reflect(H: Floats, mirror: Floats, item: Int) -> None:
    """Copy an item's row into the mirrored table."""
    for k in range(H.shape[1]):
        mirror[k, item] = H[item, k]


def mirrored(H: Floats) -> NDArray[np.float32]:
    """The item table (I, d) with a dimension in each row, padded to a multiple of :data:`UNROLLED`."""
    n_items, dim = H.shape
    mirror = np.zeros((-(-dim // UNROLLED) * UNROLLED, n_items), np.float32)
    mirror[:dim] = H.T
    return mirror
