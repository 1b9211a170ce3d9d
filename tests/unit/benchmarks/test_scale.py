"""The scale benchmark: costs at several sizes, and the size at which memory is exhausted."""

from __future__ import annotations

import gc
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until


@pytest.fixture
def scale() -> Any:
    import scale

    return scale


def test_table_has_growth_per_unit_and_the_size_at_which_memory_ends(scale: Any) -> None:
    costs = {size: scale.Cost(2e-6 * size, 10_000 * size + 2**20, 0) for size in (1000, 2000, 4000)}
    row = scale.table({"prepare": costs}, {"memory": 1, "disk": 1})[-1].split(" | ")
    assert row[2:5] == ["1,000 / 2,000 / 4,000", "2 / 2 / 2", "1.00"]
    assert row[7].startswith("0")
    assert row[8] == "110,000 (memory, 1 GiB) |"  # (2^30 - 2^20) / 10,000
    assert scale.wall((1, 2, 4), (8, 9, 10), 100) is None


def test_measured_cost_covers_memory_and_writes_of_the_block(scale: Any, tmp_path: Path) -> None:
    from growth import measured, memory

    for private in (False, True):
        gc.collect()  # garbage of other tests, if freed in the block, would reduce its count
        files = memory("RssFile")
        with measured(tmp_path, private) as cost:
            block = b"1" * 2**26
            (tmp_path / f"file-{private}").write_bytes(block[: 2**20])
            reclaimed = 0 if private else max(0, files - memory("RssFile"))  # mapped pages freed by the system
        assert cost.written == 2**20
        assert cost.memory >= 2**26 - reclaimed
        assert 0 <= cost.seconds < 60
        del block


@pytest.mark.parametrize("private", [False, True])
def test_failing_measurement_ends_its_sampling_threads(scale: Any, private: bool, tmp_path: Path) -> None:
    from growth import measured

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="full"), measured(tmp_path, private):
        raise OSError("the disk is full")
    until(lambda: before.issuperset(threading.enumerate()), why=lambda: "a thread that samples keeps the process")


def test_staging_exits_with_an_error_if_its_s3_server_has_ended(
    scale: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from growth import storage

    ended = subprocess.Popen(["false"])
    ended.wait()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "")  # stage sets these variables for the process
    monkeypatch.setattr(storage.subprocess, "Popen", lambda *words, **options: ended)
    with pytest.raises(SystemExit, match=r"moto\[server\]"):
        storage.stage(4, tmp_path)
