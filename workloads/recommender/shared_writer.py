"""Write the prepared data of a large dataset to a file, in memory that does not depend on its interactions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data import Interactions
from workloads.data.interactions.splits import held_out_counts, hold_out
from workloads.recommender.dataset import VALIDATION_FRACTION, History, divide
from workloads.safetensors_header import header
from workloads.sampling.pairs import set_bits, table_bytes, table_slots

HISTORIES = ("train", "validation", "seen", "test")

ROWS = 2**20
"""Interactions that are prepared at a time: those of some users, or all of one user."""

TABLE_BYTES = 2**26
"""Bytes of the bit table that are in memory at a time. For each the keys are read once."""

_TYPES = {np.int64: "I64", np.uint8: "U8", np.bool_: "BOOL"}


class _TensorFile:
    """A safetensors file whose tensors are written piece by piece.

    ``layout``: type and shape of each tensor.
    """

    def __init__(self, file: BinaryIO, layout: Mapping[str, tuple[type[Any], tuple[int, ...]]]) -> None:
        self._file = file
        self._kinds = {name: np.dtype(kind) for name, (kind, _) in layout.items()}
        sizes = {name: self._kinds[name].itemsize * math.prod(shape) for name, (_, shape) in layout.items()}
        file.write(header({name: (_TYPES[kind], shape, sizes[name]) for name, (kind, shape) in layout.items()}))
        ends = accumulate(sizes.values(), initial=file.tell())
        self._starts = dict(zip(layout, ends))
        file.truncate(file.tell() + sum(sizes.values()))

    def put(self, name: str, first: int, values: NDArray[Any] | torch.Tensor) -> None:
        """Write values (n,) from an element of the flattened tensor on."""
        self._file.seek(self._starts[name] + first * self._kinds[name].itemsize)
        self._file.write(np.ascontiguousarray(values, self._kinds[name]).data)

    def blocks(self, name: str, size: int) -> Iterator[torch.Tensor]:
        """A tensor's elements, flattened, at most :data:`ROWS` at a time; ``size`` of them."""
        self._file.flush()
        for first in range(0, size, ROWS):
            start = self._starts[name] + first * self._kinds[name].itemsize
            count = min(ROWS, size - first)
            yield torch.from_numpy(np.fromfile(self._file.name, self._kinds[name], count, offset=start))


def write_by_users(file: BinaryIO, data: Interactions, split_seed: int, holdout: bool) -> None:
    """Write the tensors of :func:`~workloads.recommender.dataset.divide`, for some users after others.

    For data of more than :data:`~workloads.sampling.pairs.LISTED` users x items.
    """
    starts = {name: np.pad(counts.cumsum(), (1, 0)) for name, counts in _counts(data, holdout).items()}
    size = {name: int(ends[-1]) for name, ends in starts.items()}
    layout: dict[str, tuple[type[Any], tuple[int, ...]]] = {"pairs": (np.int64, (2, size["pairs"]))}
    for name in HISTORIES:
        layout |= {f"{name}.indptr": (np.int64, (data.n_users + 1,))}
        layout |= {f"{name}.{part}": (np.int64, (size[name],)) for part in ("users", "items")}
    layout |= {f"unobserved.{part}": (np.int64, (size["train"],)) for part in ("keys", "items")}
    layout["unobserved.bits"] = (np.uint8, (table_bytes(size["train"]),))
    if data.truth is not None or data.noise is not None:
        layout["wrong"] = (np.bool_, (size["pairs"],))
    tensors = _TensorFile(file, layout)
    for name in HISTORIES:
        tensors.put(f"{name}.indptr", 0, starts[name])
    for first, last in _users(starts["seen"]):
        some = _only(data, first, last)
        if holdout and data.held_out is None:
            held_out = hold_out(some.train, some.n_users, VALIDATION_FRACTION, split_seed, int(starts["seen"][first]))
            some = replace(some, held_out=held_out)
        made = divide(some, split_seed, holdout, torch.device("cpu"), listed=False)
        at = {name: int(all_starts[first]) for name, all_starts in starts.items()}
        for name in HISTORIES:
            history: History = getattr(made, name)
            tensors.put(f"{name}.users", at[name], history.users + first)
            tensors.put(f"{name}.items", at[name], history.items)
        unobserved = made.unobserved.tensors()
        tensors.put("unobserved.keys", at["train"], unobserved["keys"] + first * data.n_items)
        tensors.put("unobserved.items", at["train"], unobserved["items"] + first * (data.n_items + 1))
        tensors.put("pairs", at["pairs"], made.pairs[0] + first)
        tensors.put("pairs", size["pairs"] + at["pairs"], made.pairs[1] + (data.n_users - some.n_users))
        if made.wrong is not None:
            tensors.put("wrong", at["pairs"], made.wrong)
    for first in range(0, table_bytes(size["train"]), TABLE_BYTES):
        table = torch.zeros(min(TABLE_BYTES, table_bytes(size["train"]) - first), dtype=torch.uint8)
        for keys in tensors.blocks("unobserved.keys", size["train"]):
            slots = table_slots(keys, size["train"]) - 8 * first
            slots = slots[(slots >= 0) & (slots < 8 * len(table))].unique()  # type: ignore[no-untyped-call]
            is_set = (table[slots >> 3] >> (slots & 7).to(torch.uint8)) & 1
            set_bits(table, slots[is_set == 0])
        tensors.put("unobserved.bits", first, table)


def _counts(data: Interactions, holdout: bool) -> dict[str, NDArray[np.int64]]:
    """How many interactions each user (U,) has in each history and in the pairs that are trained on."""

    def count(pairs: NDArray[np.int32], chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        total = np.zeros(data.n_users, np.int64)
        for first in range(0, len(pairs), ROWS):
            users = pairs[first : first + ROWS, 0]
            users = users if chosen is None else users[chosen[first : first + ROWS]]
            total += np.bincount(users, minlength=data.n_users)
        return total

    seen = count(data.train)
    if not holdout:
        held = np.zeros_like(seen)
    elif data.held_out is None:
        held = held_out_counts(seen, VALIDATION_FRACTION)
    else:
        held = count(data.train, data.held_out)
    train = seen - held
    return {
        "train": train,
        "validation": np.where(train > 0, held, 0),
        "seen": seen,
        "test": count(data.test),
        "pairs": np.where(train < data.n_items, train, 0),
    }


def _users(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of users that have :data:`ROWS` interactions at most, or are one user."""
    first = 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + ROWS, "right")) - 1)
        yield first, last
        first = last


def _only(data: Interactions, first: int, last: int) -> Interactions:
    """The interactions of users ``first`` to ``last``, who are numbered from 0."""

    def rows(pairs: NDArray[np.int32]) -> NDArray[np.int64]:
        blocks = [np.empty(0, np.int64)]
        for start in range(0, len(pairs), ROWS):
            users = pairs[start : start + ROWS, 0]
            blocks.append(start + np.flatnonzero((first <= users) & (users < last)))
        return np.concatenate(blocks)

    train = rows(data.train)
    offset = np.array([first, 0], np.int32)
    return Interactions(
        last - first,
        data.n_items,
        data.train[train] - offset,
        data.test[rows(data.test)] - offset,
        truth=None if data.truth is None else data.truth[first:last],
        noise=None if data.noise is None else data.noise[train],
        held_out=None if data.held_out is None else data.held_out[train],
    )
