"""Which interactions an epoch visits and which unobserved items stand against them: pure functions of a position.

Every number comes from SplitMix64 of (key, counter), the generator of ``workloads/sampling/negatives.py``; position p
of an epoch owns the counters p, p + 2^36, p + 2·2^36, ... So a draw depends on nothing that was drawn before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workloads.recommender.sequential.compiled import Int, Real, compiled, inlined

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]

UNIFORM, POPULARITY, RANKED = 0, 1, 2
"""How candidates are proposed: each item alike, by weight, or as a place in the user's ranking."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_ATTEMPT = np.uint64(36)
_PATIENCE = 128  # rejections after which the items are listed instead
_FEW = 64  # candidates up to which a repetition is looked for one by one
_SETS = 8  # draws of a whole set, after which its items are replaced one by one


class Pairs(NamedTuple):
    """A set of (user, item): ``items[indptr[u]:indptr[u + 1]]`` ascending, and the same as bits where they are few."""

    indptr: NDArray[np.int64]
    items: Ints
    bits: NDArray[np.uint64]
    """(U, words), or (0, 0)."""


class Proposal(NamedTuple):
    """How candidates are drawn from a user's unobserved items."""

    kind: int
    number: int
    """Candidates for each positive, the same item never twice where ``distinct``."""
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
    """64 random bits; the upper half is ``workloads.sampling.negatives.random_bits``."""
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
    """Bring into a random order (Fisher and Yates)."""
    for last in range(len(rows) - 1, 0, -1):
        other = below(key, last, 0, last + 1)
        rows[last], rows[other] = rows[other], rows[last]


@inlined
def has(pairs: Pairs, user: Int, item: Int) -> Int:
    """Whether (user, item) is in the set."""
    if pairs.bits.size:
        return (pairs.bits[user, item >> 6] >> np.uint64(item & 63)) & np.uint64(1) != 0
    low, high = pairs.indptr[user], pairs.indptr[user + 1]
    while low < high:
        middle = (low + high) >> 1
        if pairs.items[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low < pairs.indptr[user + 1] and pairs.items[low] == item


@inlined
def unobserved(observed: Pairs, user: Int, n_items: Int) -> Int:
    """|I_u^-|."""
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
    """Candidates for a block of positions from ``first`` on, from the unobserved items of their users, who have some.

    UNIFORM and POPULARITY reject what is observed, which leaves the distribution over I_u^- exact. RANKED gives one
    number, the place among the unobserved items, best first, that the caller looks up in the scores.

    Args:
        out: (B, count), filled.
        counts: (B,), filled: how many candidates there are.
    """
    if proposal.kind == RANKED:
        for b in range(len(users)):
            out[b, 0] = _place(unobserved(observed, users[b], n_items), proposal.scale, unit(key, first + b, 0))
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
    """Candidates that may repeat."""
    weighted = proposal.kind == POPULARITY
    for b in range(len(users)):
        user, attempt = np.int64(users[b]), 0
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
    """Different candidates, all there are where fewer are left: a few by rejection, a large part of them listed."""
    number = proposal.number
    for b in range(len(users)):
        user = np.int64(users[b])
        left = unobserved(observed, user, n_items)
        if number > _FEW or 4 * number > left:
            counts[b] = _subset(min(number, left), observed, user, n_items, key, first + b, out[b])
            continue
        counts[b], clash, attempt = number, True, 0
        while clash and attempt < _SETS * number:  # without a branch for each: a clash is as good as a coin's fall
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
    """Draw again, until there is none, each item that is observed or there before."""
    for c in range(number):
        item = np.int64(out[c])
        while _taken(observed, user, item, out, c):
            item = below(key, position, attempt, n_items)
            attempt += 1
        out[c] = item


@inlined
def _taken(observed: Pairs, user: Int, item: Int, out: Ints, count: Int) -> Int:
    """Whether an item is observed or one of the first ``count`` of ``out``."""
    found = has(observed, user, item)
    for earlier in range(count):
        found |= out[earlier] == item
    return found


@compiled
def _search(proposal: Proposal, observed: Pairs, user: Int, n_items: Int, place: Real) -> Int:
    """The same distribution without rejection, for users who have seen nearly all that is drawn; O(I).

    Weights that are all zero on I_u^- count as equal.
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
    target, passed, last = place * total, 0.0, 0
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
    """``count`` of the unobserved items, every subset alike, ascending (Knuth's algorithm S); O(I)."""
    left, chosen = unobserved(observed, user, n_items), 0
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
def _place(n: Int, scale: Real, uniform: Real) -> Int:
    """A rank from 0 to n - 1 with probability proportional to exp(-rank / scale), by its inverse distribution."""
    place = -scale * np.log1p(uniform * np.expm1(-n / scale))
    return min(n - 1, np.int64(place))


def alias_tables(weights: NDArray[np.float64]) -> tuple[Floats, Ints]:
    """Walker's tables: item l keeps a draw with probability ``share[l]``, else the draw goes to ``alias[l]``.

    Args:
        weights: (I,), not negative. All zero is all equal.
    """
    n = len(weights)
    total = weights.sum()
    scaled = weights * (n / total) if total > 0 else np.ones(n)
    share, alias = np.ones(n), np.arange(n, dtype=np.int32)
    small, large = list(np.flatnonzero(scaled < 1)), list(np.flatnonzero(scaled >= 1))
    while small and large:
        low, high = small.pop(), large[-1]
        share[low], alias[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return share.astype(np.float32), alias


def pairs(indptr: NDArray[np.int64], items: NDArray[np.integer[Any]], n_items: int, limit: int = 2**31) -> Pairs:
    """A set from its rows, each ascending; as bits too where users x items is at most ``limit``."""
    n_users, words = len(indptr) - 1, -(-n_items // 64)
    bits = np.zeros((0, 0), np.uint64)
    if 0 < n_users * n_items <= limit:
        bits = np.zeros((n_users, words), np.uint64)
        users = np.repeat(np.arange(n_users), np.diff(indptr))
        np.bitwise_or.at(bits, (users, items >> 6), np.uint64(1) << (items & 63).astype(np.uint64))
    return Pairs(np.ascontiguousarray(indptr, np.int64), np.ascontiguousarray(items, np.int32), bits)
