"""Order of an epoch's interactions and candidates for their negatives: pure functions of the position in the epoch.

Random numbers are SplitMix64 of (key, counter), the generator of ``workloads/sampling/negatives.py``. Position p of
an epoch uses the counters p, p + 2^36, p + 2·2^36, ..., so no draw depends on an earlier one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workloads.compilation import Int, Real, compiled, inlined

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]

UNIFORM, POPULARITY, RANKED = 0, 1, 2
"""How candidates are drawn: uniformly, by weight, or as a rank in the user's ranking."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_ATTEMPT = np.uint64(36)
_PATIENCE = 128  # rejections after which the items are listed instead
_FEW = 64  # up to this number of candidates repetitions are searched pair by pair
_SETS = 8  # draws of a whole set after which its items are replaced one by one


class Pairs(NamedTuple):
    """A set of (user, item): ``items[indptr[u]:indptr[u + 1]]`` ascending; also as a bit matrix if that is small."""

    indptr: NDArray[np.int64]
    items: Ints
    bits: NDArray[np.uint64]
    """(U, words), or (0, 0)."""


class Proposal(NamedTuple):
    """How candidates are drawn from a user's unobserved items."""

    kind: int
    number: int
    """Candidates for each positive; if ``distinct``, no item occurs twice."""
    distinct: bool
    weights: NDArray[np.float64]
    """(I,), for POPULARITY."""
    share: Floats
    alias: Ints
    """Walker's tables of ``weights``."""
    scale: float
    """λ of exp(-rank/λ), for RANKED."""


@inlined
def random_bits(key: np.uint64, counter: np.uint64) -> np.uint64:
    """64 random bits; the upper half equals ``workloads.sampling.negatives.random_bits``."""
    z = counter * _GAMMA + key
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@inlined
def below(key: np.uint64, position: Int, attempt: Int, n: Int) -> Int:
    """Uniform on 0 .. n - 1, n <= 2^32."""
    bits = random_bits(key, np.uint64(position) + (np.uint64(attempt) << _ATTEMPT))
    return np.int64(((bits >> _HALF) * np.uint64(n)) >> _HALF)


@inlined
def unit(key: np.uint64, position: Int, attempt: Int) -> Real:
    """Uniform on [0, 1), 53 bits."""
    bits = random_bits(key, np.uint64(position) + (np.uint64(attempt) << _ATTEMPT))
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@compiled
def shuffle(rows: Ints, key: np.uint64) -> None:
    """Shuffle in place (Fisher and Yates)."""
    for last in range(len(rows) - 1, 0, -1):
        other = below(key, last, 0, last + 1)
        rows[last], rows[other] = rows[other], rows[last]


@inlined
def has(pairs: Pairs, user: Int, item: Int) -> Int:
    """Whether (user, item) is in the set."""
    if pairs.bits.size:
        return (pairs.bits[user, item >> 6] >> np.uint64(item & 63)) & np.uint64(1) != 0
    low = pairs.indptr[user]
    high = pairs.indptr[user + 1]
    while low < high:
        middle = (low + high) >> 1
        if pairs.items[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low < pairs.indptr[user + 1] and pairs.items[low] == item


@inlined
def unobserved(observed: Pairs, user: Int, n_items: Int) -> Int:
    """Number of the user's unobserved items, |I_u^-|."""
    return n_items - (observed.indptr[user + 1] - observed.indptr[user])


@compiled
def propose(
    proposal: Proposal,
    observed: Pairs,
    users: Ints,
    n_items: Int,
    key: np.uint64,
    first: Int,
    out: Ints,
    counts: NDArray[np.int64],
) -> None:
    """Draw candidates for a block of positions from ``first`` on, among the unobserved items of their users.

    Each user must have an unobserved item. UNIFORM and POPULARITY reject observed items, which leaves the
    distribution over I_u^- exact. RANKED draws a rank, best first, whose item the caller looks up in the scores.

    Args:
        out: (B, count), filled.
        counts: (B,), filled with the number of candidates.
    """
    if proposal.kind == RANKED:
        for b in range(len(users)):
            out[b, 0] = _random_rank(unobserved(observed, users[b], n_items), proposal.scale, unit(key, first + b, 0))
    elif not proposal.distinct:
        _propose_any(proposal, observed, users, n_items, key, first, out)
    else:
        _propose_distinct(proposal, observed, users, n_items, key, first, out, counts)
        return
    counts[: len(users)] = proposal.number


@compiled
def _propose_any(
    proposal: Proposal, observed: Pairs, users: Ints, n_items: Int, key: np.uint64, first: Int, out: Ints
) -> None:
    """Draw candidates with replacement."""
    weighted = proposal.kind == POPULARITY
    for b in range(len(users)):
        user = np.int64(users[b])
        attempt = 0
        for c in range(proposal.number):
            last = attempt + _PATIENCE
            while True:
                bits = random_bits(key, np.uint64(first + b) + (np.uint64(attempt) << _ATTEMPT))
                attempt += 1
                item = np.int64(((bits >> _HALF) * np.uint64(n_items)) >> _HALF)
                coin = np.float32(bits & np.uint64(0xFFFFFF)) * np.float32(2.0**-24)
                if weighted and coin >= proposal.share[item]:
                    item = np.int64(proposal.alias[item])
                if not has(observed, user, item):
                    break
                if attempt == last:
                    item = _search(proposal, observed, user, n_items, unit(key, first + b, attempt))
                    attempt += 1
                    break
            out[b, c] = item


@compiled
def _propose_distinct(
    proposal: Proposal,
    observed: Pairs,
    users: Ints,
    n_items: Int,
    key: np.uint64,
    first: Int,
    out: Ints,
    counts: NDArray[np.int64],
) -> None:
    """Draw distinct candidates, or all if there are fewer: a few by rejection, many by a pass over all items."""
    number = proposal.number
    for b in range(len(users)):
        user = np.int64(users[b])
        left = unobserved(observed, user, n_items)
        if number > _FEW or 4 * number > left:
            counts[b] = _subset(min(number, left), observed, user, n_items, key, first + b, out[b])
            continue
        counts[b] = number
        clash = True
        attempt = 0
        while clash and attempt < _SETS * number:  # no branch for each item: it would be unpredictable
            clash = False
            for c in range(number):
                item = below(key, first + b, attempt + c, n_items)
                clash |= has(observed, user, item)
                for earlier in range(c):
                    clash |= out[b, earlier] == item
                out[b, c] = item
            attempt += number
        if clash:
            _replace(observed, user, n_items, key, first + b, attempt, number, out[b])


@compiled
def _replace(
    observed: Pairs, user: Int, n_items: Int, key: np.uint64, position: Int, attempt: Int, number: Int, out: Ints
) -> None:
    """Redraw each item that is observed or a repetition, until none is."""
    for c in range(number):
        item = np.int64(out[c])
        while _taken(observed, user, item, out, c):
            item = below(key, position, attempt, n_items)
            attempt += 1
        out[c] = item


@inlined
def _taken(observed: Pairs, user: Int, item: Int, out: Ints, count: Int) -> Int:
    """Whether an item is observed or one of the first ``count`` of ``out``."""
    taken = has(observed, user, item)
    for earlier in range(count):
        taken |= out[earlier] == item
    return taken


@compiled
def _search(proposal: Proposal, observed: Pairs, user: Int, n_items: Int, quantile: Real) -> Int:
    """Draw from the same distribution without rejection, for users who have seen nearly all likely items; O(I).

    If all weights on I_u^- are zero, they count as equal. ``quantile``: uniform on [0, 1).
    """
    equal = proposal.kind == UNIFORM
    total = 0.0
    if not equal:
        for item in range(n_items):
            if not has(observed, user, item):
                total += proposal.weights[item]
        equal = total == 0.0
    if equal:
        total = float(unobserved(observed, user, n_items))
    target = quantile * total
    passed = 0.0
    last = 0
    for item in range(n_items):
        if has(observed, user, item) or not (equal or proposal.weights[item] > 0):
            continue
        last = item
        passed += 1.0 if equal else proposal.weights[item]
        if passed > target:
            break
    return last


@compiled
def _subset(count: Int, observed: Pairs, user: Int, n_items: Int, key: np.uint64, position: Int, out: Ints) -> Int:
    """A uniformly random subset of ``count`` unobserved items, ascending (Knuth's algorithm S); O(I)."""
    left = unobserved(observed, user, n_items)
    chosen = 0
    for item in range(n_items):
        if chosen == count:
            break
        if has(observed, user, item):
            continue
        if below(key, position, item, left) < count - chosen:
            out[chosen] = item
            chosen += 1
        left -= 1
    return chosen


@compiled
def _random_rank(n: Int, scale: Real, uniform: Real) -> Int:
    """A rank from 0 to n - 1 with probability proportional to exp(-rank / scale), by inversion."""
    rank = -scale * np.log1p(uniform * np.expm1(-n / scale))
    return min(n - 1, np.int64(rank))


def alias_tables(weights: NDArray[np.float64]) -> tuple[Floats, Ints]:
    """Walker's tables: a draw of item l stays with probability ``share[l]``, otherwise it becomes ``alias[l]``.

    Args:
        weights: (I,), not negative. If all are zero, they count as equal.
    """
    n = len(weights)
    total = weights.sum()
    scaled = weights * (n / total) if total > 0 else np.ones(n)
    share = np.ones(n)
    alias = np.arange(n, dtype=np.int32)
    small = list(np.flatnonzero(scaled < 1))
    large = list(np.flatnonzero(scaled >= 1))
    while small and large:
        low = small.pop()
        high = large[-1]
        share[low] = scaled[low]
        alias[low] = high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return share.astype(np.float32), alias


def pairs(indptr: NDArray[np.int64], items: NDArray[np.integer[Any]], n_items: int, limit: int = 2**31) -> Pairs:
    """Build a set from its rows, each ascending; with bits if users x items is at most ``limit``."""
    n_users = len(indptr) - 1
    words = -(-n_items // 64)
    bits = np.zeros((0, 0), np.uint64)
    if 0 < n_users * n_items <= limit:
        bits = np.zeros((n_users, words), np.uint64)
        users = np.repeat(np.arange(n_users), np.diff(indptr))
        np.bitwise_or.at(bits, (users, items >> 6), np.uint64(1) << (items & 63).astype(np.uint64))
    return Pairs(np.ascontiguousarray(indptr, np.int64), np.ascontiguousarray(items, np.int32), bits)
