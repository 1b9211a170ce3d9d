"""Serve a trained recommender: user ids or histories in, top-k items and scores out.

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
    """Ranks all items for rows of queries, on one device."""

    def top(
        self, queries: NDArray[np.float32], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` best items of each of ``queries`` (B, d) and their scores, both (B, k), best first, ties by item.

        The pairs (row of ``queries``, item) of ``rows`` and ``items`` are excluded: they come last, at -inf.
        """


class Predictor:
    """The k items of highest score for each user or history, or the most popular ones for an unknown user."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Take the trained tables.

        Args:
            weights: ``seen_indptr`` (U + 1,) and ``seen_items``: what each user has interacted with; ``popularity``
                (I,): interactions of each item; if the source has ids of its own, ``user_ids`` and ``item_ids``: int64,
                or text as UTF-8 in rows of bytes. For scores: ``users`` (U, d) and ``items`` (I, d), float32; or
                ``item_weights`` (I, I), whose rows are summed over a user's items; or such a matrix in CSR,
                ``similar_indptr`` (I + 1,), ``similar_items`` and ``similarities``.
            config: ``dataset``, named in messages; ``fold_in``: see :class:`FoldIn`.
        """
        self.dataset = config["dataset"]
        self.indptr = weights["seen_indptr"].astype(np.int64)
        self.seen = weights["seen_items"].astype(np.int64)
        self.n_items = len(weights["popularity"])
        self.interactions = popularity = weights["popularity"]
        self.popular = np.argsort(-popularity, kind="stable")
        self.popular_share = (popularity / popularity.sum())[self.popular].astype(np.float32)
        self.users = weights.get("users")
        self.fold_in = FoldIn(weights["items"], **config.get("fold_in", {})) if self.users is not None else None
        self.ranker = _ranker(weights)
        self.user_names = Names(weights.get("user_ids"))
        self.item_names = Names(weights.get("item_ids"))

    def predict(
        self, inputs: pd.DataFrame, *, k: int = 20, exclude_seen: bool = True, unknown: str = "popular"
    ) -> pd.DataFrame:
        """Recommend ``k`` items to each row of the input, in its order.

        Args:
            inputs: column ``user``, ids of the dataset, of which one may occur several times; or column ``history``,
                each a list of item ids that a user has, known or not: the model then scores from these alone.
            k: length of each list; shorter where fewer candidates are left.
            exclude_seen: leave out what the user has interacted with in training and validation data, or the history.
            unknown: ``popular`` gives users without either the most popular items, ``error`` raises ValueError.

        Returns:
            Columns ``user``, ``rank`` (from 1), ``item``, ``score`` and ``fallback``: True in rows of a
            popularity list, whose score is the item's share of all interactions; also for histories of items
            without interactions.
            For histories without a column ``user``, ``user`` is the row of the input, from 0.

        Raises:
            ValueError: no column ``user`` or ``history``, ids that are no integers, unknown users or items of a
                history, or a parameter out of bounds.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if unknown not in _UNKNOWN:
            raise ValueError(f"unknown must be one of {', '.join(_UNKNOWN)}, got {unknown!r}")
        users = None
        if "history" in inputs.columns:
            named = inputs["user"].to_numpy() if "user" in inputs.columns else np.arange(len(inputs))
            indptr, known = self._histories(inputs["history"])
        else:
            named = self.user_names.column(inputs)
            users = self.user_names.numbers(named)
            indptr, known = self._seen(users)
        trained = np.diff(indptr) > 0
        if users is None:  # nothing was learnt from items without interactions
            learnt = np.append(0, np.cumsum(self.interactions[known] > 0))
            trained = learnt[indptr[1:]] > learnt[indptr[:-1]]
        if unknown == "error" and not trained.all():
            raise ValueError(self._unknown_users(np.unique(named[~trained])))
        k = min(k, self.n_items)
        items = np.broadcast_to(self.popular[:k], (len(named), k)).copy()
        scores = np.broadcast_to(self.popular_share[:k], (len(named), k)).copy()
        lengths = np.full(len(named), k)
        positions = np.flatnonzero(trained)
        step = max(1, _SCORES // self.n_items)
        for part in (positions[first : first + step] for first in range(0, len(positions), step)):
            rows, own = _pairs(indptr, known, part)
            queries = self._queries(None if users is None else users[part], rows, own, len(part))
            if not exclude_seen:
                rows, own = rows[:0], own[:0]
            items[part], scores[part] = self.ranker.top(queries, rows, own, k)
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

    def _queries(
        self, users: NDArray[np.int64] | None, rows: NDArray[np.int64], items: NDArray[np.int64], count: int
    ) -> NDArray[np.float32]:
        """What the ranker scores ``count`` rows from: embeddings, or zeros and ones for a user's items."""
        if self.users is None or self.fold_in is None:
            histories = np.zeros((count, self.n_items), np.float32)
            histories[rows, items] = 1
            return histories
        return self.fold_in(rows, items, count) if users is None else self.users[users]

    def _seen(self, users: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What each user has interacted with in training and validation data, as lists in CSR."""
        inside = (users >= 0) & (users < len(self.indptr) - 1)
        row = np.where(inside, users, 0)
        starts = self.indptr[row]
        counts = np.where(inside, self.indptr[row + 1] - starts, 0)
        indptr = np.append(0, np.cumsum(counts))
        return indptr, self.seen[np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], counts)]

    def _histories(self, column: pd.Series[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of the items of each history, each once, as lists in CSR."""
        lists = []
        for row, given in enumerate(column):
            ids = np.asarray(given, object)
            if ids.ndim != 1:  # a set is one object
                raise ValueError(f"a history is a list of item ids, got {given!r} in row {row} of the input")
            numbers = self.item_names.numbers(self.item_names.typed(ids, "item", row))
            outside = (numbers < 0) | (numbers >= self.n_items)
            if outside.any():
                strange = ids.tolist()[int(outside.argmax())]
                raise ValueError(
                    f"the model, trained on {self.dataset}, does not know item {strange!r} of the history in row {row} "
                    "of the input; leave it out"
                )
            lists.append(np.unique(numbers))
        indptr = np.append(0, np.cumsum([len(numbers) for numbers in lists])).astype(np.int64)
        return indptr, np.concatenate(lists) if lists else np.empty(0, np.int64)

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
            raise ValueError(
                "the input needs a column 'user' with user ids, or 'history' with lists of item ids, "
                f"got {list(inputs.columns)}"
            )
        return self.typed(inputs["user"].to_numpy(), "user")

    def typed(self, values: NDArray[Any], role: str, row: int | None = None) -> NDArray[Any]:
        """Values as ids: text or int64. ``role`` and ``row``, the input's row if not that of a value, for messages."""
        if self.ids is not None and self.ids.dtype.kind == "U":
            if (missing := pd.isna(values)).any():
                where = int(missing.argmax()) if row is None else row
                raise ValueError(f"{role} ids are texts, got nothing in row {where} of the input")
            return values.astype(str)
        return _integers(values, role, row)

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


def _pairs(
    indptr: NDArray[np.int64], members: NDArray[np.int64], lists: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The members of some lists in CSR, as pairs (place of the list in ``lists``, member)."""
    counts = indptr[lists + 1] - indptr[lists]
    rows = np.repeat(np.arange(len(lists)), counts)
    before = np.cumsum(counts) - counts
    return rows, members[np.arange(len(rows)) - before[rows] + indptr[lists][rows]]


def _integers(values: NDArray[Any], role: str, row: int | None) -> NDArray[np.int64]:
    if values.dtype.kind in "iu" or len(values) == 0:
        return values.astype(np.int64)
    for place, value in enumerate(values):
        where = place if row is None else row
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not number or value != value // 1:
            raise ValueError(f"{role} ids are integers, got {value!r} in row {where} of the input")
        if abs(value) >= 2**63:
            raise ValueError(f"{role} ids have at most 64 bits, got {value!r} in row {where} of the input")
    return values.astype(np.int64)


class FoldIn:
    """The embedding of a user who comes with items, by regularised least squares on the items' embeddings h.

    (Σ h hᵀ over all items + α Σ h hᵀ over the user's + λ I)⁻¹ (1 + α) Σ h over the user's: the normal equation of
    implicit ALS (Hu et al., ICDM 2008, eq. 4), which fits 1 for the user's items and 0 for all others. The defaults are
    for embeddings that were trained by another loss.
    """

    def __init__(self, items: NDArray[np.float32], alpha: float = 10.0, ridge: float | None = None) -> None:
        """``items`` (I, d). ``ridge``: λ; by default three times the mean of the diagonal of Σ h hᵀ."""
        self.items = items.astype(np.float64)
        self.alpha = alpha
        self.gram = self.items.T @ self.items
        ridge = 3 * float(self.gram.diagonal().mean()) if ridge is None else ridge
        self.gram += ridge * np.eye(len(self.gram))

    def __call__(self, rows: NDArray[np.int64], items: NDArray[np.int64], count: int) -> NDArray[np.float32]:
        """The embeddings of ``count`` users, (count, d), from pairs (user, item) ordered by user."""
        result = np.zeros((count, self.items.shape[1]), np.float32)
        ends = np.searchsorted(rows, np.arange(count), side="right")
        for user, own in enumerate(np.split(self.items[items], ends[:-1])):
            right = (1 + self.alpha) * own.sum(0)
            result[user] = np.linalg.solve(self.gram + self.alpha * own.T @ own, right)
        return result


def _ranker(weights: dict[str, NDArray[Any]]) -> Ranker:
    if "similarities" in weights:
        return NeighbourRanker(*(weights[name] for name in ("similar_indptr", "similar_items", "similarities")))
    items = weights["items"] if "items" in weights else weights["item_weights"].T
    try:
        import torch
    except ImportError:
        return NumpyRanker(items)
    return TorchRanker(items, "cuda") if torch.cuda.is_available() else NumpyRanker(items)


class NumpyRanker:
    """Ranks by inner products on the CPU."""

    def __init__(self, items: NDArray[np.float32]) -> None:
        self.items = items

    def top(
        self, queries: NDArray[np.float32], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return _best(queries @ self.items.T, rows, items, k)


class NeighbourRanker:
    """Ranks by sums of the rows of a sparse matrix, those of the query's items, on the CPU."""

    def __init__(self, indptr: NDArray[Any], targets: NDArray[Any], similarities: NDArray[np.float32]) -> None:
        self.indptr = indptr.astype(np.int64)
        self.targets = targets.astype(np.int64)
        self.similarities = similarities

    def top(
        self, queries: NDArray[np.float32], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        owners, own = np.nonzero(queries)
        pairs, places = _pairs(self.indptr, np.arange(len(self.targets)), own)
        cells = owners[pairs] * queries.shape[1] + self.targets[places]
        sums = np.bincount(cells, self.similarities[places], queries.size)
        return _best(sums.reshape(queries.shape).astype(np.float32), rows, items, k)


def _best(
    scores: NDArray[np.float32], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """See :meth:`Ranker.top`; ``scores`` (B, I) are overwritten."""
    scores[rows, items] = -np.inf
    # One distinct integer a candidate, score above and item number below: ties have one order everywhere.
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)
    keys = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | np.arange(scores.shape[1])[::-1]
    best = np.argpartition(~keys, k - 1, axis=1)[:, :k]
    order = np.argsort(~np.take_along_axis(keys, best, axis=1), axis=1)
    best = np.take_along_axis(best, order, axis=1)
    return best, np.take_along_axis(scores, best, axis=1)


class TorchRanker:
    """Ranks by inner products on a device of PyTorch, with the items resident there."""

    def __init__(self, items: NDArray[np.float32], device: str) -> None:
        import torch

        self.items = torch.from_numpy(np.ascontiguousarray(items)).to(device)

    def top(
        self, queries: NDArray[np.float32], rows: NDArray[np.int64], items: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        import torch

        device = self.items.device
        scores = torch.from_numpy(queries).to(device) @ self.items.T
        scores[torch.from_numpy(rows).to(device), torch.from_numpy(items).to(device)] = -torch.inf
        bits = (scores + 0.0).view(torch.int32).long()
        below = torch.arange(scores.shape[1] - 1, -1, -1, device=device)
        keys = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | below
        best = keys.topk(k, dim=1).indices
        return best.cpu().numpy(), scores.gather(1, best).cpu().numpy()
