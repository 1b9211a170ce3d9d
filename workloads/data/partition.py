"""Arrays larger than memory, in files of the cache: grown by blocks, and regrouped by ranges of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from workloads.data.cache import cache_dir, cache_errors
from workloads.data.files import reserve

ROWS = 2**20
"""Rows that are in memory at a time: a block, or the rows of one range."""

IN_MEMORY = 2**24
"""Largest array in bytes that is kept in memory."""

Column: TypeAlias = NDArray[Any] | Callable[[slice], NDArray[Any]]
"""An array (n, ...), or a function that returns its rows of a slice."""


def blocks(count: int) -> Iterator[slice]:
    """``count`` rows in slices of :data:`ROWS`."""
    return (slice(first, min(first + ROWS, count)) for first in range(0, count, ROWS))


def scratch(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros; a large one is mapped from a file without a name, which goes when the array does.

    Raises:
        CacheUnwritable: the file cannot be created in the cache, or its disk is full.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= IN_MEMORY:
        return np.zeros(shape, dtype)
    with cache_errors(cache_dir()), _file() as file:
        reserve(file, size)
        return np.asarray(np.memmap(file, dtype, "r+", shape=shape))


class Growing:
    """An array of rows of one shape, to whose end blocks are added."""

    def __init__(self, dtype: DTypeLike, *shape: int) -> None:
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._blocks: list[NDArray[Any]] = []
        self._file: BinaryIO | None = None

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows (m, ...). Raises CacheUnwritable."""
        self._blocks.append(np.ascontiguousarray(rows, self._dtype))
        if sum(block.nbytes for block in self._blocks) > IN_MEMORY:
            with cache_errors(cache_dir()):
                self._file = self._file or _file()
                self._write(self._file)

    def array(self) -> NDArray[Any]:
        """All rows (n, ...), mapped from a file if they are many. The last call. Raises CacheUnwritable."""
        if self._file is None:
            return np.concatenate([np.empty((0, *self._shape), self._dtype), *self._blocks])
        with cache_errors(cache_dir()), self._file as file:
            self._write(file)
            return np.asarray(np.memmap(file, self._dtype, "r+")).reshape(-1, *self._shape)

    def _write(self, file: BinaryIO) -> None:
        for block in self._blocks:
            file.write(block.data)
        file.flush()
        self._blocks = []


def ranges(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide the keys 0, 1, ... into ranges of at most :data:`ROWS` rows, or of one key.

    Args:
        counts: the rows of each key, (K,).

    Returns:
        The first key of each range, and K, (R + 1,).
    """
    ends = counts.cumsum()
    firsts = [0]
    while firsts[-1] < len(counts):
        before = int(ends[firsts[-1] - 1]) if firsts[-1] else 0
        firsts.append(max(firsts[-1] + 1, int(np.searchsorted(ends, before + ROWS, "right"))))
    return np.array(firsts)


def equal_ranges(keys: int, rows: int) -> NDArray[np.int64]:
    """Divide the ``keys`` 0, 1, ..., drawn with equal chances, into ranges of about :data:`ROWS` of the rows.

    Returns:
        The first key of each range, and ``keys``, (R + 1,).
    """
    return np.linspace(0, keys, rows // ROWS + 2).astype(np.int64)


def partition(
    count: int, keys: Column, firsts: NDArray[np.int64], columns: Sequence[Column]
) -> Iterator[tuple[NDArray[Any], ...]]:
    """For each range of keys the rows that have one of its keys, in their order; a tuple with a part of each column.

    Reads the keys twice and the columns once, and writes each row once.

    Args:
        count: number of rows.
        keys: their keys, integers (n,).
        firsts: the first key of each range, ascending, and a number above all keys, (R + 1,).
        columns: what is regrouped.
    """
    number = len(firsts) - 1
    if number <= 1 or not count:
        first = tuple(_rows(column, slice(0, count)) for column in columns)
        yield from (first, *[tuple(part[:0] for part in first)] * (number - 1))
        return
    sizes = np.zeros(number, np.int64)
    for block in blocks(count):
        sizes += np.bincount(_range_of(_rows(keys, block), firsts), minlength=number)
    ends = np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])
    at = ends[:-1].copy()
    grouped: list[NDArray[Any]] = []
    for block in blocks(count):
        part = _range_of(_rows(keys, block), firsts)
        order = np.argsort(part, kind="stable")
        here = np.bincount(part, minlength=number)
        places = np.arange(len(order)) + np.repeat(at - (here.cumsum() - here), here)
        values = [_rows(column, block) for column in columns]
        grouped = grouped or [scratch((count, *rows.shape[1:]), rows.dtype) for rows in values]
        for array, rows in zip(grouped, values):
            array[places] = rows[order]
        at += here
    for start, end in pairwise(ends.tolist()):
        yield tuple(array[start:end] for array in grouped)


def select(column: Column, chosen: NDArray[np.bool_], wanted: bool = True) -> NDArray[Any]:
    """The rows of a column, in their order, where the mask (n,) is ``wanted``."""
    none = _rows(column, slice(0, 0))
    selected = Growing(none.dtype, *none.shape[1:])
    for block in blocks(len(chosen)):
        selected.append(_rows(column, block)[chosen[block] == wanted])
    return selected.array()


def row_numbers(rows: slice) -> NDArray[np.int64]:
    """The numbers of the rows, as a column."""
    return np.arange(rows.start, rows.stop)


def key_counts(
    keys: NDArray[np.integer[Any]], number: int = 0, chosen: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """How many rows have each key, at least (number,); ``chosen`` (n,): of which rows."""
    total = np.zeros(number, np.int64)
    for block in blocks(len(keys)):
        part = keys[block] if chosen is None else keys[block][chosen[block]]
        counts = np.bincount(part, minlength=len(total))
        counts[: len(total)] += total
        total = counts
    return total


def _rows(column: Column, rows: slice) -> NDArray[Any]:
    return column(rows) if callable(column) else column[rows]


def _range_of(keys: NDArray[Any], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The range of each key. (m,)."""
    return np.searchsorted(firsts, keys, "right") - 1


def _file() -> BinaryIO:
    cache_dir().mkdir(parents=True, exist_ok=True)
    return TemporaryFile(dir=cache_dir())
