"""Numbers of users, items and pairs: pairs as one integer each, and ids that are their own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def encode(pairs: NDArray[np.integer[Any]], n_items: int) -> NDArray[np.int64]:
    """One integer for each row of ``pairs`` (n, 2): user * n_items + item."""
    return pairs[:, 0].astype(np.int64) * n_items + pairs[:, 1]


def decode(codes: NDArray[np.int64], n_items: int) -> NDArray[np.int32]:
    """The pairs (n, 2) of :func:`encode`."""
    return np.stack(np.divmod(codes, n_items), axis=1).astype(np.int32)


def distinct(*codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Union of the arrays, ascending."""
    # Not np.unique: its hash table takes ten times as long as sorting.
    ordered = np.sort(np.concatenate(codes))
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def unless_counted(ids: NDArray[Any]) -> NDArray[Any] | None:
    """The ids (n,); None if they are 0, 1, ..."""
    return None if ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids))) else ids
