"""The table of costs at several sizes, and its walls."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def scale() -> Any:
    import scale

    return scale


def test_growth_of_a_unit_and_the_size_at_which_memory_ends(scale: Any) -> None:
    costs = {size: scale.Cost(2e-6 * size, 10_000 * size + 2**20, 0) for size in (1000, 2000, 4000)}
    row = scale.table({"prepare": costs}, {"memory": 1, "disk": 1})[-1].split(" | ")
    assert row[2:5] == ["1,000 / 2,000 / 4,000", "2 / 2 / 2", "1.00"]
    assert row[7].startswith("0")
    assert row[8] == "110,000 (memory, 1 GiB) |"  # (2^30 - 2^20) / 10,000
    assert scale.wall((1, 2, 4), (8, 9, 10), 100) is None


def test_a_cost_is_that_of_what_is_inside(scale: Any, tmp_path: Path) -> None:
    from growth import measured, memory

    for private in (False, True):
        gc.collect()  # garbage of other tests that is freed inside would count against the block
        files = memory("RssFile")
        with measured(tmp_path, private) as cost:
            block = b"1" * 2**26
            (tmp_path / f"file-{private}").write_bytes(block[: 2**20])
            reclaimed = 0 if private else max(0, files - memory("RssFile"))  # pages of mapped files, by the system
        assert cost.written == 2**20
        assert cost.memory >= 2**26 - reclaimed
        assert 0 <= cost.seconds < 60
        del block
