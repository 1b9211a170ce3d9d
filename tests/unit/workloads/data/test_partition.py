"""Arrays larger than memory: their content, and the number of reads of each row."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from workloads.data import CacheUnwritable, partition


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(partition, "ROWS", 100)
    monkeypatch.setattr(partition, "IN_MEMORY", 1000)


def test_partition_by_ranges_of_keys_reads_each_row_once() -> None:
    source = np.random.default_rng(0)
    keys = np.append(source.integers(0, 40, 950), np.full(150, 20))
    values = source.random((1100, 2))
    firsts = partition.ranges(partition.key_counts(keys))
    counts = np.diff(np.append(0, np.bincount(keys).cumsum())[firsts])
    assert firsts[[0, -1]].tolist() == [0, 40]
    assert ((counts <= 100) | (np.diff(firsts) == 1)).all()
    read: list[slice] = []
    columns = (partition.row_numbers, lambda rows: read.append(rows) or values[rows])
    parts = list(partition.partition(1100, keys, firsts, columns))
    for (rows, some), (first, last) in zip(parts, pairwise(firsts), strict=True):
        np.testing.assert_array_equal(rows, np.flatnonzero((keys >= first) & (keys < last)))
        np.testing.assert_array_equal(some, values[rows])
    assert sum(rows.stop - rows.start for rows in read) == 1100


def test_ranges_without_rows_give_empty_parts() -> None:
    none = np.empty(0, np.int64)
    parts = partition.partition(0, none, np.arange(4), [none])
    assert [len(part) for (part,) in parts] == [0, 0, 0]
    assert partition.ranges(np.zeros(5, np.int64)).tolist() == [0, 5]


def test_large_arrays_are_in_files_without_a_name(tmp_path: Path) -> None:
    def is_mapped(array: np.ndarray) -> bool:
        while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
            array = array.base
        return array is not None

    grown = partition.Growing(np.int32, 2)
    blocks = [np.arange(size * 2).reshape(-1, 2) for size in (3, 200, 0, 7)]
    for block in blocks:
        grown.append(block)
    array = grown.array()
    np.testing.assert_array_equal(array, np.concatenate(blocks).astype(np.int32), strict=True)
    assert is_mapped(array)
    assert is_mapped(partition.scratch((1001,), np.bool_))
    assert not is_mapped(partition.scratch((1000,), np.bool_))
    assert not list((tmp_path / "cache").iterdir())


def test_select_returns_the_rows_of_a_mask() -> None:
    values = np.arange(950).reshape(-1, 1)
    mask = np.random.default_rng(0).random(950) < 0.3
    np.testing.assert_array_equal(partition.select(values, mask), values[mask])
    np.testing.assert_array_equal(partition.select(values, mask, False), values[~mask])


def test_full_disk_raises_cache_unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a memory-mapped file without allocated blocks would kill the process."""

    def full(*of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CacheUnwritable, match=r"the cache cannot be written \(No space left on device\)"):
        partition.scratch((1001,), np.bool_)
