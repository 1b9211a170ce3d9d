"""Serve a trained recommender: user ids in, top-k items and scores out.

This file is exported with the model. It needs NumPy and pandas, and uses PyTorch if that has a CUDA device.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_SCORES = 2**22  # computed at once: 16 MB

_UNKNOWN = ("popular", "error")


class Ranker(Protocol):
    """Ranks all items for rows of the user table, on one device."""

    def top(
        self, users: NDArray[np.int64], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` best items of each of ``users`` and their scores, both (B, k), best first, ties by item.

        The pairs (row of ``users``, item) of ``rows`` and ``items`` are excluded: they come last, at -inf.
        """


class Predictor:
    """The k items of highest score for each user, or the most popular ones for an unknown user."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Take the trained tables.

        Args:
            weights: ``users`` (U, d) and ``items`` (I, d), float32; ``seen_indptr`` (U + 1,) and ``seen_items``:
                what each user has interacted with; ``popularity`` (I,): interactions of each item; if the source
                has ids of its own, ``user_ids`` and ``item_ids``: int64, or text as UTF-8 in rows of bytes.
            config: ``dataset``, named in messages.
        """
        self.dataset = config["dataset"]
        self.indptr = weights["seen_indptr"].astype(np.int64)
        self.seen = weights["seen_items"].astype(np.int64)
        self.n_items = len(weights["items"])
        popularity = weights["popularity"]
        self.popular = np.argsort(-popularity, kind="stable")
        self.popular_share = (popularity / popularity.sum())[self.popular].astype(np.float32)
        self.ranker = _ranker(weights["users"], weights["items"])
        self.user_names = Names(weights.get("user_ids"))
        self.item_names = Names(weights.get("item_ids"))

    def predict(
        self, inputs: pd.DataFrame, *, k: int = 20, exclude_seen: bool = True, unknown: str = "popular"
    ) -> pd.DataFrame:
        """Recommend ``k`` items to each user of ``inputs["user"]``, in the order of the input.

        Args:
            inputs: column ``user``, ids of the dataset; an id may occur several times.
            k: length of each list; shorter where fewer candidates are left.
            exclude_seen: leave out what the user has interacted with in training and validation data.
            unknown: ``popular`` gives users without such data the most popular items, ``error`` raises ValueError.

        Returns:
            Columns ``user``, ``rank`` (from 1), ``item``, ``score`` and ``fallback``: True in rows of a
            popularity list, whose score is the item's share of all interactions.

        Raises:
            ValueError: no column ``user``, ids that are no integers, unknown users, or a parameter out of bounds.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if unknown not in _UNKNOWN:
            raise ValueError(f"unknown must be one of {', '.join(_UNKNOWN)}, got {unknown!r}")
        named = self.user_names.column(inputs)
        users = self.user_names.numbers(named)
        trained = self._has_history(users)
        if unknown == "error" and not trained.all():
            raise ValueError(self._unknown_users(np.unique(named[~trained])))
        k = min(k, self.n_items)
        items = np.broadcast_to(self.popular[:k], (len(users), k)).copy()
        scores = np.broadcast_to(self.popular_share[:k], (len(users), k)).copy()
        lengths = np.full(len(users), k)
        positions = np.flatnonzero(trained)
        step = max(1, _SCORES // self.n_items)
        for part in (positions[first : first + step] for first in range(0, len(positions), step)):
            rows, seen = self._seen(users[part]) if exclude_seen else (np.empty(0, np.int64),) * 2
            items[part], scores[part] = self.ranker.top(users[part], rows, seen, k)
            lengths[part] = np.minimum(k, self.n_items - np.bincount(rows, minlength=len(part)))
        filled = np.arange(k) < lengths[:, None]
        return pd.DataFrame(
            {
                "user": np.repeat(named, lengths),
                "rank": np.broadcast_to(np.arange(1, k + 1), filled.shape)[filled],
                "item": self.item_names.of(items[filled]),
                "score": scores[filled],
                "fallback": np.repeat(~trained, lengths),
            }
        )

    def _has_history(self, users: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each user has interactions in training or validation data."""
        inside = (users >= 0) & (users < len(self.indptr) - 1)
        row = np.where(inside, users, 0)
        has: NDArray[np.bool_] = inside & (self.indptr[row + 1] > self.indptr[row])
        return has

    def _seen(self, users: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What the users have seen, as pairs (row of ``users``, item)."""
        counts = self.indptr[users + 1] - self.indptr[users]
        rows = np.repeat(np.arange(len(users)), counts)
        before = np.cumsum(counts) - counts
        return rows, self.seen[np.arange(len(rows)) - before[rows] + self.indptr[users][rows]]

    def _unknown_users(self, ids: NDArray[Any]) -> str:
        named = ", ".join(map(str, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        return (
            f"the model, trained on {self.dataset}, does not know {'user' if len(ids) == 1 else 'users'} {named}; "
            "leave them out, or set unknown='popular' to get the most popular items for them"
        )


class Names:
    """Map between numbers 0, 1, ... and the ids of the source; the identity if the source has no ids."""

    def __init__(self, ids: NDArray[Any] | None) -> None:
        self.ids = ids
        if ids is not None and ids.ndim == 2:  # text
            self.ids = np.char.decode(np.ascontiguousarray(ids).view(f"S{ids.shape[1]}").ravel(), "utf-8")
        self.order = None if self.ids is None else np.argsort(self.ids, kind="stable")

    def column(self, inputs: pd.DataFrame) -> NDArray[Any]:
        """The input's users as the source names them. Raises ValueError for values that cannot be ids."""
        if "user" not in inputs.columns:
            raise ValueError(f"the input needs a column 'user' with user ids, got {list(inputs.columns)}")
        values = inputs["user"].to_numpy()
        if self.ids is not None and self.ids.dtype.kind == "U":
            return values.astype(str)
        return _integers(values)

    def numbers(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The number of each id; -1 for an unknown id."""
        if self.ids is None or self.order is None:
            return ids
        position = np.searchsorted(self.ids, ids, sorter=self.order).clip(max=len(self.ids) - 1)
        number = self.order[position]
        return np.where(self.ids[number] == ids, number, -1)

    def of(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """The ids of some numbers."""
        return numbers if self.ids is None else self.ids[numbers]


def _integers(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind in "iu" or len(values) == 0:
        return values.astype(np.int64)
    for row, value in enumerate(values):
        if not isinstance(value, int | float | np.integer) or isinstance(value, bool) or value != value // 1:
            raise ValueError(f"user ids are integers, got {value!r} in row {row} of the input")
    return values.astype(np.int64)


def _ranker(users: NDArray[np.float32], items: NDArray[np.float32]) -> Ranker:
    try:
        import torch
    except ImportError:
        return NumpyRanker(users, items)
    return TorchRanker(users, items, "cuda") if torch.cuda.is_available() else NumpyRanker(users, items)


class NumpyRanker:
    """Ranks on the CPU."""

    def __init__(self, users: NDArray[np.float32], items: NDArray[np.float32]) -> None:
        self.users = users
        self.items = items

    def top(
        self, users: NDArray[np.int64], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        scores = self.users[users] @ self.items.T
        scores[rows, items] = -np.inf
        # One distinct integer a candidate, score above and item number below: ties have one order everywhere.
        bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)
        keys = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | np.arange(scores.shape[1])[::-1]
        best = np.argpartition(~keys, k - 1, axis=1)[:, :k]
        order = np.argsort(~np.take_along_axis(keys, best, axis=1), axis=1)
        best = np.take_along_axis(best, order, axis=1)
        return best, np.take_along_axis(scores, best, axis=1)


class TorchRanker:
    """Ranks on a device of PyTorch, with the tables resident there."""

    def __init__(self, users: NDArray[np.float32], items: NDArray[np.float32], device: str) -> None:
        import torch

        self.users = torch.from_numpy(users).to(device)
        self.items = torch.from_numpy(items).to(device)

    def top(
        self, users: NDArray[np.int64], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        import torch

        device = self.users.device
        scores = self.users[torch.from_numpy(users).to(device)] @ self.items.T
        scores[torch.from_numpy(rows).to(device), torch.from_numpy(items).to(device)] = -torch.inf
        bits = (scores + 0.0).view(torch.int32).long()
        below = torch.arange(scores.shape[1] - 1, -1, -1, device=device)
        keys = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | below
        best = keys.topk(k, dim=1).indices
        return best.cpu().numpy(), scores.gather(1, best).cpu().numpy()
