"""Write the prepared data of a large dataset to a file, in memory that does not depend on its interactions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data import Interactions
from workloads.data.interactions.splits import held_out_counts, hold_out
from workloads.data.partition import blocks, key_counts, partition, ranges
from workloads.recommender.dataset import VALIDATION_FRACTION, History, divide
from workloads.safetensors_header import header
from workloads.sampling.pairs import set_bits, table_bytes, table_slots

HISTORIES = ("train", "validation", "seen", "test")

TABLE_BYTES = 2**23
"""Bytes of the bit table that are in memory at a time."""

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

    def part(self, name: str, rows: slice) -> torch.Tensor:
        """Elements of the flattened tensor that have been written."""
        self._file.flush()
        start = self._starts[name] + rows.start * self._kinds[name].itemsize
        return torch.from_numpy(np.fromfile(self._file.name, self._kinds[name], rows.stop - rows.start, offset=start))


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
    firsts = ranges(starts["seen"][1:] - starts["seen"][:-1])
    for first, some in zip(firsts.tolist(), _by_users(data, firsts)):
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
    _write_bits(tensors, size["train"])


def _write_bits(tensors: _TensorFile, members: int) -> None:
    """Write the bit table of the set of keys, a part of it after the other."""

    def slots(rows: slice) -> NDArray[np.int64]:
        slots: NDArray[np.int64] = table_slots(tensors.part("unobserved.keys", rows), members).numpy()
        return slots

    size = table_bytes(members)
    firsts = np.append(np.arange(0, size, TABLE_BYTES), size)
    for first, (chosen,) in zip(firsts.tolist(), partition(members, slots, 8 * firsts, [slots])):
        table = torch.zeros(min(TABLE_BYTES, size - first), dtype=torch.uint8)
        for rows in blocks(len(chosen)):
            some = torch.from_numpy(chosen[rows] - 8 * first).unique()  # type: ignore[no-untyped-call]
            is_set = (table[some >> 3] >> (some & 7).to(torch.uint8)) & 1
            set_bits(table, some[is_set == 0])
        tensors.put("unobserved.bits", first, table)


def _counts(data: Interactions, holdout: bool) -> dict[str, NDArray[np.int64]]:
    """How many interactions each user (U,) has in each history and in the pairs that are trained on."""
    seen = key_counts(data.train[:, 0], data.n_users)
    if not holdout:
        held = np.zeros_like(seen)
    elif data.held_out is None:
        held = held_out_counts(seen, VALIDATION_FRACTION)
    else:
        held = key_counts(data.train[:, 0], data.n_users, data.held_out)
    train = seen - held
    return {
        "train": train,
        "validation": np.where(train > 0, held, 0),
        "seen": seen,
        "test": key_counts(data.test[:, 0], data.n_users),
        "pairs": np.where(train < data.n_items, train, 0),
    }


def _by_users(data: Interactions, firsts: NDArray[np.int64]) -> Iterator[Interactions]:
    """The interactions of the users of each range, who are numbered from 0."""
    marks = {name: mark for name in ("noise", "held_out") if (mark := getattr(data, name)) is not None}
    train = partition(len(data.train), data.train[:, 0], firsts, [data.train, *marks.values()])
    test = partition(len(data.test), data.test[:, 0], firsts, [data.test])
    for (first, last), (pairs, *chosen), (tested,) in zip(pairwise(firsts.tolist()), train, test):
        offset = np.array([first, 0], np.int32)
        truth = None if data.truth is None else data.truth[first:last]
        yield Interactions(
            last - first, data.n_items, pairs - offset, tested - offset, truth=truth, **dict(zip(marks, chosen))
        )
