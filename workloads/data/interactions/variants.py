"""What is made of a dataset before training: another split, injected noise. Seeded, the same on every machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workloads.data.errors import DataError
from workloads.data.interactions.codes import decode, distinct, encode
from workloads.data.interactions.types import Interactions

Split: TypeAlias = Literal["official", "random", "clean"]

TEST_FRACTION = 0.2
"""Share of all interactions that a random test part holds."""

CLEAN_FRACTION = 0.5
"""Share of the interactions of highest rating that a clean test part holds."""

HIGHEST_SHARE = 0.02
"""Of all interactions, below which the highest rating is none of a scale: MovieLens has 21% of fives."""

TEST_SEED = 0
"""Of every drawn test part: all runs are judged on the same one."""


def resplit(data: Interactions, split: Split, seed: int = TEST_SEED, clean_from: float | None = None) -> Interactions:
    """The same interactions in another split. The draw belongs to the set of pairs and the seed, not to their order.

    Args:
        data: the dataset in its own split; without one its test part is empty.
        split: ``official`` keeps the dataset's split, or draws a random one if it has none. ``random``: 20% of all
            interactions, of any user, are the test part. ``clean``: half of the interactions with the highest rating
            are the test part and all others train, so that the test items are certainly liked.
        seed: of the draw.
        clean_from: for ``clean``, keep train and take from the source's own test part the ratings from this one on;
            what lies below is left out.

    Raises:
        DataError: ``clean`` without ratings, or where next to none are the highest.
    """
    if split == "official" and len(data.test):
        return data
    if split != "clean":
        return _divided(data, _drawn(_pairs(data), TEST_FRACTION, seed))
    if data.train_ratings is None or data.test_ratings is None:
        raise DataError(
            "split=clean needs ratings, and the dataset has none",
            expected="ratings of which the highest tell what is liked",
            fix="Use split=official or split=random",
        )
    if clean_from is not None:
        good = data.test_ratings >= clean_from
        return replace(data, test=data.test[good], test_ratings=data.test_ratings[good],
                       test_times=None if data.test_times is None else data.test_times[good])  # fmt: skip
    ratings = np.concatenate([data.train_ratings, data.test_ratings])
    highest = np.flatnonzero(ratings == ratings.max())
    if len(highest) < HIGHEST_SHARE * len(ratings):
        raise DataError(
            f"split=clean tests on the highest rating, {ratings.max():g}, and next to no interaction has it",
            got=f"{len(highest)} of {len(ratings)}", expected=f"at least {HIGHEST_SHARE:.0%}",
            fix="Correct the ratings that are off the scale, or use split=official or split=random",
        )  # fmt: skip
    test = np.zeros(len(ratings), np.bool_)
    test[highest[_drawn(_pairs(data)[highest], CLEAN_FRACTION, seed)]] = True
    return _divided(data, test)


def with_noise(data: Interactions, rate: float, seed: int = TEST_SEED) -> Interactions:
    """Add round(rate n) interactions that never happened to the n of train, and mark them in ``noise``.

    Each is drawn uniformly from the pairs that are in neither part (and, where the truth is known, not liked
    either), without replacement. Their ratings and times are 0. What is held out for validation is drawn from all
    of train, as by somebody who does not know which are noise.

    Raises:
        DataError: there are not as many such pairs.
    """
    count = round(rate * len(data.train))
    taken = distinct(encode(_pairs(data), data.n_items), *([] if data.truth is None else [np.flatnonzero(data.truth)]))
    free = data.n_users * data.n_items - len(taken)
    if count > free:
        most = math.floor(1e4 * free / len(data.train)) / 1e4
        raise DataError(
            "there are too few pairs without an interaction for the noise", got=f"{free}",
            expected=f"{count} ({rate:g} of train)", fix=f"Set dataset_noise to at most {most:g}",
        )  # fmt: skip
    places = _distinct(count, free, seed)
    # The r-th code that is not taken: r, and one more for each taken code before it.
    codes = places + np.searchsorted(taken - np.arange(len(taken)), places, side="right")
    return replace(
        data,
        train=np.concatenate([data.train, decode(codes, data.n_items)]),
        train_ratings=_padded(data.train_ratings, count),
        train_times=_padded(data.train_times, count),
        noise=np.arange(len(data.train) + count) >= len(data.train),
    )


def _drawn(pairs: NDArray[np.int32], fraction: float, seed: int) -> NDArray[np.bool_]:
    """A mask (n,) of round(fraction n) pairs, halves up; at least one where n >= 2, never all."""
    n = len(pairs)
    count = int(np.clip(np.floor(fraction * n + 0.5), min(n - 1, 1), n - 1)) if n else 0
    by_pair = np.lexsort((pairs[:, 1], pairs[:, 0]))
    draws = np.random.PCG64(seed).random_raw(n)
    mask = np.zeros(n, np.bool_)
    mask[by_pair[np.argsort(draws, kind="stable")[:count]]] = True
    return mask


def _divided(data: Interactions, test: NDArray[np.bool_]) -> Interactions:
    """All interactions, those of the mask as the test part, both parts in their order."""
    columns: dict[str, Any] = {}
    for name in ("", "_ratings", "_times"):
        parts = getattr(data, f"train{name}"), getattr(data, f"test{name}")
        if parts[0] is not None:
            whole = np.concatenate(parts)
            columns |= {f"train{name}": whole[~test], f"test{name}": whole[test]}
    return replace(data, **columns)


def _distinct(count: int, below: int, seed: int) -> NDArray[np.int64]:
    """A set of so many integers in [0, below), drawn one after the other, ascending."""
    bits = np.random.PCG64(seed)
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        more = (bits.random_raw(2 * count) % np.uint64(below)).astype(np.int64)
        values, first = np.unique(np.concatenate([drawn, more]), return_index=True)
        drawn = values[np.argsort(first)][:count]  # in the order drawn, so that the first ones stay
    return np.sort(drawn)


def _padded(values: NDArray[Any] | None, count: int) -> NDArray[Any] | None:
    return None if values is None else np.concatenate([values, np.zeros(count, values.dtype)])


def _pairs(data: Interactions) -> NDArray[np.int32]:
    return np.concatenate([data.train, data.test])
