"""Other splits, a lowest rating, injected noise. Seeded, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workloads.data.errors import DataError
from workloads.data.interactions.codes import decode, distinct, encode
from workloads.data.interactions.types import Interactions
from workloads.data.partition import (
    Growing,
    blocks,
    equal_ranges,
    key_counts,
    partition,
    ranges,
    row_numbers,
    scratch,
    select,
)

Split: TypeAlias = Literal["official", "random", "clean", "leave_last_out", "global_time"]

TEST_FRACTION = 0.2
"""Share of all interactions in a random test part."""

VALIDATION_FRACTION = 0.1
"""Share of the training interactions, the latest, in the validation part of a global cut in time."""

CLEAN_FRACTION = 0.5
"""Share of the interactions with the highest rating in a clean test part."""

HIGHEST_SHARE = 0.02
"""Smallest share of all interactions with the highest rating; below it, ratings are not on a scale. In MovieLens 21%
are fives."""

TEST_SEED = 0
"""Seed of every drawn test part, so that all runs are evaluated on the same one."""


def resplit(data: Interactions, split: Split, seed: int = TEST_SEED, clean_from: float | None = None) -> Interactions:
    """Split the interactions differently. The draw depends on the set of pairs and the seed, not on their order.

    Args:
        data: the dataset in its own split; if it has none, its test part is empty.
        split: ``official`` keeps the dataset's split, or draws a random one if it has none. ``random``: 20% of all
            interactions, of any user, are the test part. ``clean``: half of the interactions with the highest rating
            are the test part and all others train, so that test items are certainly liked. ``leave_last_out``: each
            user's last interaction is the test part and the one before it validation; a user's interactions of one time
            are in the order of a hash of user and item, so that neither the order of rows nor the items' numbers
            decide. ``global_time``: the latest 20% of all interactions are the test part, without users who have none
            before, and the latest 10% of the others validation; interactions of one time are never divided.
        seed: seed of the draw.
        clean_from: for ``clean``, keep train, and keep of the source's own test part the ratings from this one on.

    Raises:
        DataError: ``clean`` without ratings, or with almost none that are the highest; a split by time without times,
            or that leaves the test part empty.
    """
    if split == "official" and len(data.test):
        return data
    if split in ("leave_last_out", "global_time"):
        return _by_time(data, split)
    if split != "clean":
        return _divided(data, _drawn(_pairs(data), TEST_FRACTION, seed))
    if data.train_ratings is None or data.test_ratings is None:
        raise DataError(
            "split=clean needs ratings, and the dataset has none",
            expected="ratings of which the highest tell what is liked, in train and test",
            fix="Use split=official or split=random",
        )
    if clean_from is not None:
        good = data.test_ratings >= clean_from
        return replace(data, test=data.test[good], test_ratings=data.test_ratings[good],
                       test_times=None if data.test_times is None else data.test_times[good])  # fmt: skip
    highest = _highest(_joined(data.train_ratings, data.test_ratings))
    return _divided(data, _within(highest, _drawn(select(_pairs(data), highest), CLEAN_FRACTION, seed)))


def rated_from(data: Interactions, least: float) -> Interactions:
    """The interactions of both parts with a rating of at least ``least``.

    Users and items without one keep their numbers and ids.

    Raises:
        DataError: the dataset has no ratings, or a part has none that high.
    """
    if data.train_ratings is None or data.test_ratings is None:
        raise DataError(
            "dataset_min_rating needs ratings, and the dataset has none", got=f"dataset_min_rating={least:g}",
            fix="Leave it out, or take a dataset with ratings in train and test",
        )  # fmt: skip
    columns: dict[str, Any] = {}
    for part, ratings in (("train", data.train_ratings), ("test", data.test_ratings)):
        high = scratch(ratings.shape, np.bool_)
        for block in blocks(len(ratings)):
            high[block] = ratings[block] >= np.float32(least)
        if len(high) and not high.any():  # an emptied test part would be taken for none, and another one drawn
            raise DataError(
                f"no interaction of {part} has a rating of at least {least:g}", got=f"at most {ratings.max():g}",
                fix="Set a lower dataset_min_rating",
            )  # fmt: skip
        for name in (part, f"{part}_ratings", f"{part}_times"):
            if (column := getattr(data, name)) is not None:
                columns[name] = select(column, high)
    return replace(data, **columns)


def with_noise(data: Interactions, rate: float, seed: int = TEST_SEED) -> Interactions:
    """Add round(rate n) false interactions to the n of train, and mark them in ``noise``.

    They are drawn uniformly, without replacement, from the pairs that are in neither part (and, if the truth is known,
    not liked). Their ratings and times are 0. Validation is drawn from all of train, since in practice noise is not
    marked.

    Raises:
        DataError: there are too few such pairs.
    """
    count = round(rate * len(data.train))
    taken = _taken(data)
    free = data.n_users * data.n_items - len(taken)
    if count > free:
        most = math.floor(1e4 * free / len(data.train)) / 1e4
        raise DataError(
            "there are too few pairs without an interaction for the noise", got=f"{free}",
            expected=f"{count} ({rate:g} of train)", fix=f"Set dataset_noise to at most {most:g}",
        )  # fmt: skip
    places = _distinct(count, free, seed)
    # The r-th free code is r plus the number of taken codes before it: of those whose value less their rank is <= r.
    for block in blocks(len(taken)):
        taken[block] -= row_numbers(block)
    added = scratch((count, 2), np.int32)
    for block in blocks(count):
        some = places[block]
        added[block] = decode(some + np.searchsorted(taken, some, side="right"), data.n_items)
    noise = scratch((len(data.train) + count,), np.bool_)
    noise[len(data.train) :] = True
    return replace(
        data,
        train=_joined(data.train, added),
        train_ratings=_padded(data.train_ratings, count),
        train_times=_padded(data.train_times, count),
        noise=noise,
        held_out=_padded(data.held_out, count),
    )


def _taken(data: Interactions) -> NDArray[np.int64]:
    """Codes of the pairs that are in either part or, if the truth is known, liked; ascending, without repetitions."""
    pairs = _pairs(data)
    firsts = ranges(key_counts(pairs[:, 0], data.n_users))
    taken = Growing(np.int64)
    for first, end, (some,) in zip(firsts, firsts[1:], partition(len(pairs), pairs[:, 0], firsts, (pairs,))):
        liked = [] if data.truth is None else [np.flatnonzero(data.truth[first:end]) + first * data.n_items]
        taken.append(distinct(encode(some, data.n_items), *liked))
    return taken.array()


def _highest(ratings: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask (n,) of the interactions with the highest rating."""
    most = max((ratings[block].max() for block in blocks(len(ratings))), default=0.0)
    mask = scratch((len(ratings),), np.bool_)
    for block in blocks(len(ratings)):
        mask[block] = ratings[block] == most
    count = int(np.count_nonzero(mask))
    if count < HIGHEST_SHARE * len(ratings):
        raise DataError(
            f"split=clean tests on the highest rating, {most:g}, and next to no interaction has it",
            got=f"{count} of {len(ratings)}", expected=f"at least {HIGHEST_SHARE:.0%}",
            fix="Correct the ratings that are off the scale, or use split=official or split=random",
        )  # fmt: skip
    return mask


def _within(mask: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask (n,) of the rows of ``mask`` that are also in ``chosen``, a mask of those rows."""
    both = scratch(mask.shape, np.bool_)
    start = 0
    for block in blocks(len(mask)):
        end = start + int(np.count_nonzero(mask[block]))
        both[block][mask[block]] = chosen[start:end]
        start = end
    return both


def _by_time(data: Interactions, split: Split) -> Interactions:
    """The splits by time."""
    if data.train_times is None or data.test_times is None:
        raise DataError(
            f"split={split} needs the times of interactions, and the dataset has none",
            expected="timestamps in train and test",
            fix="Use split=official or split=random, or a dataset with timestamps",
        )  # fmt: skip
    times = _joined(data.train_times, data.test_times)
    divided = _last_out(data, times) if split == "leave_last_out" else _latest_out(data, times)
    if not len(divided.test):
        raise DataError(
            f"split={split} leaves the test part empty",
            got=f"{len(times)} interactions, none to test on",
            expected="a user with two"
            if split == "leave_last_out"
            else "a user with one before and one in the last 20%",
            fix="Take finer timestamps, or another split",
        )
    return divided


def _latest_out(data: Interactions, times: NDArray[np.int64]) -> Interactions:
    divided = _divided(data, _latest(times, TEST_FRACTION))
    assert divided.train_times is not None
    trained = key_counts(divided.train[:, 0], data.n_users) > 0
    known = scratch((len(divided.test),), np.bool_)
    for block in blocks(len(known)):
        known[block] = trained[divided.test[block, 0]]
    columns = {name: getattr(divided, name) for name in ("test", "test_ratings", "test_times")}
    kept: dict[str, Any] = {name: select(column, known) for name, column in columns.items() if column is not None}
    return replace(divided, held_out=_latest(divided.train_times, VALIDATION_FRACTION), **kept)


def _last_out(data: Interactions, times: NDArray[np.int64]) -> Interactions:
    pairs = _pairs(data)
    last, second = (scratch((len(pairs),), np.bool_) for _ in range(2))
    firsts = ranges(key_counts(pairs[:, 0]))
    for rows, some, moments in partition(len(pairs), pairs[:, 0], firsts, (row_numbers, pairs, times)):
        place = _places_from_the_end(some, moments)
        _, user, counts = np.unique(some[:, 0], return_inverse=True, return_counts=True)
        last[rows] = (place == 0) & (counts[user] > 1)
        second[rows] = (place == 1) & (counts[user] > 2)
    return replace(_divided(data, last), held_out=select(second, last, False))


def _latest(times: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Mask (n,) of the latest ``fraction``, with all that are as late as the first of them; never all."""
    sign = np.uint64(1 << 63)  # with it, unsigned integers have the order of the signed ones

    def values() -> Iterator[NDArray[np.uint64]]:
        return (times[block].astype(np.uint64) ^ sign for block in blocks(len(times)))

    position = int(np.floor((1 - fraction) * len(times)))
    cut, before = _in_order(values, position)
    late = scratch((len(times),), np.bool_)
    for block, some in zip(blocks(len(times)), values()):
        late[block] = some >= cut if before else some > cut
    return late


def _places_from_the_end(pairs: NDArray[np.int32], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each row among those of its user, 0 is the last in time, (n,). Ties are in the order of their hash."""
    order = np.lexsort((_hashes(pairs), times, pairs[:, 0]))
    ends = np.searchsorted(pairs[order, 0], pairs[order, 0], side="right")
    place = np.empty(len(pairs), np.int64)
    place[order] = ends - 1 - np.arange(len(pairs))
    return place


def _hashes(pairs: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A different pseudorandom number for each pair, (n,): SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (pairs[:, 0].astype(np.uint64) << np.uint64(32) | pairs[:, 1].astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> np.uint64(shift)) * np.uint64(factor)
    return z ^ z >> np.uint64(31)


def _drawn(pairs: NDArray[np.int32], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Random mask (n,) of round(fraction n) pairs, halves up; at least one if n >= 2, never all.

    Those with the smallest draws, of which the pairs in order of users and items have one each.
    """
    n = len(pairs)
    count = int(np.clip(np.floor(fraction * n + 0.5), min(n - 1, 1), n - 1)) if n else 0
    mask = scratch((n,), np.bool_)
    if not count:
        return mask
    limit, left = _limit(count, n, seed)
    firsts = ranges(key_counts(pairs[:, 0]))
    bits = np.random.PCG64(seed)
    for rows, some in partition(n, pairs[:, 0], firsts, (row_numbers, pairs)):
        by_pair = np.lexsort((some[:, 1], some[:, 0]))
        draws = bits.random_raw(len(rows))
        equal = np.flatnonzero(draws == limit)[:left]
        left -= len(equal)
        mask[rows[by_pair[draws < limit]]] = True
        mask[rows[by_pair[equal]]] = True
    return mask


def _limit(count: int, n: int, seed: int) -> tuple[np.uint64, int]:
    """The largest of the ``count`` smallest of n draws, and how many equal to it are among them."""

    def draws() -> Iterator[NDArray[np.uint64]]:
        bits = np.random.PCG64(seed)
        return (bits.random_raw(block.stop - block.start) for block in blocks(n))

    limit, before = _in_order(draws, count - 1)
    return limit, count - before


def _in_order(values: Callable[[], Iterator[NDArray[np.uint64]]], position: int) -> tuple[np.uint64, int]:
    """The value at a position in ascending order, from 0, and how many are below it. Reads the blocks four times."""
    value = np.uint64(0)
    before = 0
    for shift in np.array([48, 32, 16, 0], np.uint64):  # by 16 bits after the others
        counts = np.zeros(1 << 16, np.int64)
        for block in values():
            high = block >> shift
            low = high[high >> np.uint64(16) == value] & np.uint64(0xFFFF)
            counts += np.bincount(low.astype(np.int64), minlength=len(counts))
        ends = counts.cumsum()
        digit = int(np.searchsorted(ends, position - before, "right"))
        before += int(ends[digit] - counts[digit])
        value = value << np.uint64(16) | np.uint64(digit)
    return value, before


def _divided(data: Interactions, test: NDArray[np.bool_]) -> Interactions:
    """All interactions, with those of the mask as the test part, in their order."""
    columns: dict[str, Any] = {}
    for name in ("", "_ratings", "_times"):
        parts = getattr(data, f"train{name}"), getattr(data, f"test{name}")
        if parts[0] is not None:
            whole = _joined(*parts)
            columns |= {
                f"{part}{name}": select(whole, test, is_test) for part, is_test in (("train", False), ("test", True))
            }
    return replace(data, **columns)


def _distinct(count: int, below: int, seed: int) -> NDArray[np.int64]:
    """The first ``count`` different integers of a sequence of draws from [0, below), ascending."""

    def drawn(rows: slice) -> NDArray[np.int64]:
        bits = np.random.PCG64(seed).advance(rows.start)
        raw: NDArray[np.uint64] = bits.random_raw(rows.stop - rows.start) % np.uint64(below)
        return raw.astype(np.int64)

    values = firsts = np.empty(0, np.int64)
    draws = 0
    while len(values) < count:
        draws += 2 * count
        seen, at = Growing(np.int64), Growing(np.int64)
        for rows, some in partition(draws, drawn, equal_ranges(below, draws), (row_numbers, drawn)):
            different, first = np.unique(some, return_index=True)
            seen.append(different)
            at.append(rows[first])
        values, firsts = seen.array(), at.array()
    if not count:
        return values
    last, _ = _in_order(lambda: (firsts[block].astype(np.uint64) for block in blocks(len(firsts))), count - 1)
    kept = scratch(firsts.shape, np.bool_)
    for block in blocks(len(firsts)):
        kept[block] = firsts[block] <= int(last)
    return select(values, kept)


def _padded(values: NDArray[Any] | None, count: int) -> NDArray[Any] | None:
    return None if values is None else _joined(values, scratch((count,), values.dtype))


def _pairs(data: Interactions) -> NDArray[np.int32]:
    return _joined(data.train, data.test)


def _joined(train: NDArray[Any], test: NDArray[Any]) -> NDArray[Any]:
    """The rows of both parts. Without a test part those of train are not copied."""
    if not len(test):
        return train
    whole = scratch((len(train) + len(test), *train.shape[1:]), train.dtype)
    for start, part in ((0, train), (len(train), test)):
        for block in blocks(len(part)):
            whole[start + block.start : start + block.stop] = part[block]
    return whole
