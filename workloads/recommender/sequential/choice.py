"""Samplers that choose a negative by the model's scores: DNS, AOBPR and BNS, for one user at a time.

Thesis 4.5.1.2 and algorithm 2. Scores are float32; values computed from them are float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.compilation import Int, Real, compiled, inlined
from workloads.recommender.sequential.draws import Floats, Ints, Pairs, has

_BITS = 11
_DIGITS = 2**_BITS
"""Bits that a pass of the radix sort orders by, and the number of their values."""

_COUNTED = 256
"""Up to this number of candidates F is counted for each; for more, all scores are sorted (measured)."""

UNROLLED = 8
"""Dimensions that :func:`score_all` processes at once; those of the mirrored item table are padded to a multiple."""


class Bayes(NamedTuple):
    """The Bayesian sampler's parameters."""

    prior: Floats
    """P_fn(l), (G, I), one row for each group of users; if (0, 0), P_fn is .04 for all."""
    group: Ints
    """Each user's row of ``prior``, (U,)."""
    weight: float
    """λ of (4.24)."""
    posterior: bool
    """Choose by the largest posterior of a true negative (4.29) instead of the smallest risk (4.26)."""
    oracle: bool
    """Whether P_fn is .64 for the false negatives of the truth (4.5.2.5)."""


@inlined
def hardest(W: Floats, H: Floats, user: Int, candidates: Ints, b: Int, count: Int) -> Int:
    """Candidate of row b with the highest score, the first if tied: DNS, thesis 4.5.1.2 with E-4.D."""
    w = W[np.uint64(user)]
    best = np.float32(-np.inf)
    chosen = candidates[b, 0]
    for c in range(count):
        h = H[np.uint64(candidates[b, c])]
        score = np.float32(0)
        for k in range(len(w)):
            score += w[k] * h[k]
        if score > best:
            best = score
            chosen = candidates[b, c]
    return np.int64(chosen)


@compiled
def score_all(w: Floats, mirror: Floats, scores: Floats) -> None:
    """Fill ``scores`` (I,) with the scores of all items; ``mirror`` is the table of :func:`mirrored`."""
    scores[:] = 0
    for k in range(0, len(w), UNROLLED):
        a = mirror[k]
        b = mirror[k + 1]
        c = mirror[k + 2]
        d = mirror[k + 3]
        e = mirror[k + 4]
        f = mirror[k + 5]
        g = mirror[k + 6]
        h = mirror[k + 7]
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
def ranked(scores: Floats, observed: Pairs, user: Int, rank: Int) -> Int:
    """The unobserved item at ``rank``, from 0, best first, ties by index. Overwrites the scores.

    Its score is searched by bisection over the 2^32 values of a float32: 32 counting passes instead of a sort.
    """
    for row in range(observed.indptr[user], observed.indptr[user + 1]):
        scores[observed.items[row]] = -np.inf
    keys = scores.view(np.int32)
    for item in range(len(keys)):
        # As integers, floats ascend where they are positive and descend where they are negative.
        keys[item] ^= (keys[item] >> np.int32(31)) & np.int32(0x7FFFFFFF)
    low = np.int64(-(2**31))
    high = np.int64(2**31 - 1)
    while low < high:
        middle = (low + high + 1) >> 1
        if _at_least(keys, np.int32(middle)) > rank:
            low = middle
        else:
            high = middle - 1
    wanted = np.int32(low)
    above = _at_least(keys, wanted) - _equal(keys, wanted)
    for item in range(len(keys)):
        if keys[item] == wanted:
            if above == rank:
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
    """Number of scores that are at most ``score``; counted in float32, which vectorises best, exact up to 2^24."""
    count = np.float32(0)
    for item in range(len(scores)):
        count += np.float32(1) if scores[item] <= score else np.float32(0)
    return np.float64(count)


@compiled
def _all_no_higher(scores: Floats, counts: Floats, order: Ints, spare: Ints) -> None:
    """Fill ``counts`` (I,) with :func:`_no_higher` of each score, by a radix sort; ``order``, ``spare``: scratch."""
    keys = scores.view(np.uint32)
    starts = np.empty(_DIGITS, np.int32)
    for item in range(len(order)):
        order[item] = item
    for shift in range(0, 32, _BITS):
        starts[:] = 0
        for item in range(len(keys)):
            starts[_digit(keys[item], shift)] += 1
        first = np.int32(0)
        for digit in range(_DIGITS):
            starts[digit], first = first, first + starts[digit]
        for row in range(len(order)):
            item = order[row]
            digit = _digit(keys[item], shift)
            spare[starts[digit]] = item
            starts[digit] += 1
        order, spare = spare, order
    last = len(order)
    for row in range(len(order) - 1, -1, -1):
        if row + 1 < len(order) and scores[order[row]] < scores[order[row + 1]]:
            last = row + 1
        counts[order[row]] = last


@inlined
def _digit(bits: Int, shift: Int) -> Int:
    """The sort's digit of a float32, given as bits: they are mapped to integers in the same order as the floats."""
    ascending = bits ^ (np.uint32(0xFFFFFFFF) if bits >> np.uint32(31) else np.uint32(0x80000000))
    return (ascending >> np.uint32(shift)) & np.uint32(_DIGITS - 1)


@inlined
def unbias(F: Real, prior: Real) -> Real:
    """P(tn | x), (4.14); 1 - prior if both its terms are 0 (E-4.14)."""
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
    """Algorithm 2: the candidate of row b with the smallest conditional risk, the first if tied.

    Overwrites the scores of observed items. F is the number of the user's unobserved items that score no higher,
    divided by one more than their number (E-4.14, E-4.15).
    """
    positive = scores[item]
    first = observed.indptr[user]
    last = observed.indptr[user + 1]
    for row in range(first, last):
        scores[observed.items[row]] = np.inf
    n = len(scores) - (last - first)
    best = np.inf
    chosen = candidates[b, 0]
    limit = -np.inf
    many = count > _COUNTED
    counts = np.empty(len(scores) if many else 0, np.float32)
    if many:
        _all_no_higher(scores, counts, np.empty(len(scores), np.int32), np.empty(len(scores), np.int32))
    for c in range(count):
        candidate = candidates[b, c]
        score = scores[candidate]
        if score < limit:
            continue
        below: Real = counts[candidate] if many else _no_higher(scores, score)
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
            best = risk
            chosen = candidate
            if not bayes.posterior and -bayes.weight < best < 0:
                # With a score below the limit even a certain true negative, of risk -λ info, is not better.
                limit = np.float64(positive) - math.log(-bayes.weight / best - 1)
    return np.int64(chosen)


@inlined
def reflect(H: Floats, mirror: Floats, item: Int) -> None:
    """Copy an item's row into the mirrored table."""
    for k in range(H.shape[1]):
        mirror[k, item] = H[item, k]


def mirrored(H: Floats) -> NDArray[np.float32]:
    """The item table (I, d) transposed; its rows are padded with zeros to a multiple of :data:`UNROLLED`."""
    n_items, dim = H.shape
    mirror = np.zeros((-(-dim // UNROLLED) * UNROLLED, n_items), np.float32)
    mirror[:dim] = H.T
    return mirror
