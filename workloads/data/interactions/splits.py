"""Seeded validation splits and the users' item lists, vectorised over users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.data.errors import DataError
from workloads.data.partition import key_counts

_USER_BITS = 28  # of 64 bits, for the user; the random draw has the other 36


def hold_out(
    pairs: NDArray[np.integer[Any]], n_users: int, fraction: float = 0.1, seed: int = 0, skip: int = 0
) -> NDArray[np.bool_]:
    """Choose each user's validation interactions at random. Returns a boolean mask (n,), True is held out.

    Of a user's n interactions round(fraction n) are held out (halves up), at least one if n >= 2, and never all. The
    choice depends on the set of pairs and the seed only, not on the order of rows or the machine (NumPy's compatibility
    policy fixes the raw stream of PCG64).

    Args:
        pairs: (n, 2) rows [user, item], without duplicates.
        n_users: number of users.
        fraction: share of each user's interactions, in (0, 1).
        seed: non-negative.
        skip: number of pairs of the users before these, if the choice is to be that among all users.

    Raises:
        ValueError: an argument is out of its bounds.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie in (0, 1), got {fraction}")
    if n_users > 1 << _USER_BITS:
        raise ValueError(f"at most {1 << _USER_BITS} users, got {n_users}")
    counts = _counts(pairs, n_users)
    held_out = held_out_counts(counts, fraction)
    by_pair = np.argsort(_codes(pairs), kind="stable")
    users = np.repeat(np.arange(n_users), counts)
    draws = np.random.PCG64(seed).advance(skip).random_raw(len(pairs)) >> _USER_BITS
    shuffled = by_pair[np.argsort(draws | users.astype(np.uint64) << 64 - _USER_BITS, kind="stable")]
    position = np.arange(len(pairs)) - _starts(counts)[users]
    mask = np.empty(len(pairs), np.bool_)
    mask[shuffled] = position < held_out[users]
    return mask


def held_out_counts(counts: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """How many of each user's ``counts`` (U,) interactions :func:`hold_out` chooses."""
    most = np.maximum(counts - 1, 0)
    held_out: NDArray[np.int64] = np.floor(fraction * counts + 0.5).astype(np.int64)
    return np.clip(held_out, np.minimum(most, 1), most)


def check_parts(train: NDArray[np.integer[Any]], test: NDArray[np.integer[Any]], files: Sequence[Path] = ()) -> None:
    """Check that validation and test have evaluable data. ``files``: those of train and test, or of both.

    Raises:
        DataError: the test part is empty, or no user has two interactions, of which one could be held out.
    """
    if not len(test):
        raise DataError(
            "the test part is empty, so nothing can be measured", file=files[-1] if files else None,
            fix="Give it interactions",
        )  # fmt: skip
    most = int(key_counts(train[:, 0]).max()) if len(train) else 0
    if most < 2:
        raise DataError(
            "no user can give an item for validation",
            file=files[0] if files else None,
            got=f"at most {most} interaction{'s' * (most != 1)} of a user in train",
            expected="a user with two",
            fix="Take a dataset with more interactions",
        )


def user_csr(pairs: NDArray[np.integer[Any]], n_users: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Users' item lists as compressed sparse rows.

    Returns:
        indptr (n_users + 1,) int64 and indices (n,) int32: the items of user u, ascending, are
        ``indices[indptr[u]:indptr[u + 1]]``.

    Raises:
        ValueError: a user id is not in [0, n_users).
    """
    starts = _starts(_counts(pairs, n_users))
    codes = np.sort(_codes(pairs))
    return starts, (codes & 0xFFFF_FFFF).astype(np.int32)


def _codes(pairs: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """One integer per pair, ordered by user, then item."""
    return (pairs[:, 0].astype(np.int64) << 32) | pairs[:, 1].astype(np.int64)


def _counts(pairs: NDArray[np.integer[Any]], n_users: int) -> NDArray[np.int64]:
    if len(pairs) and not 0 <= pairs[:, 0].min() <= pairs[:, 0].max() < n_users:
        raise ValueError(f"user ids must lie in [0, {n_users})")
    return key_counts(pairs[:, 0], n_users)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
