"""Memory that a process may use on a device, and caches bounded by it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from workloads import memory

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
GIB = 2**30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A GPU of 80 GiB with 70 GiB free; this process has reserved 4 GiB, of which 3 are in use."""
    state = {"free": 70 * GIB, "total": 80 * GIB, "reserved": 4 * GIB, "allocated": 3 * GIB, "fraction": 1.0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(state["free"]), int(state["total"])))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(state["reserved"]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: int(state["allocated"]))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: state["fraction"])
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: state.update(fraction=share)
    )
    return state


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 71),  # 70 free, and 1 that PyTorch has reserved but does not use
        ({"fraction": 0.25}, 17),  # 20 of 80, minus 3 in use
        ({"fraction": 0.25, "free": 2 * GIB}, 3),  # other processes use the rest
        ({"fraction": 0.25, "allocated": 21 * GIB, "reserved": 21 * GIB}, 0),
    ],
)
def test_available_gpu_memory_is_the_unused_share_or_the_free_memory(
    gpu: dict[str, float], changes: dict[str, float], expected: float
) -> None:
    gpu.update(changes)
    assert memory.available_bytes(GPU) == expected * GIB


@pytest.mark.parametrize(
    ("share", "total", "expected"), [(0.5, 80, 39.5), (0.25, 16, 3.5), (0.05, 8, 0.2), (2, 16, 16)]
)
def test_process_limit_of_a_share_leaves_room_for_the_context(
    gpu: dict[str, float], share: float, total: float, expected: float
) -> None:
    gpu["total"] = total * GIB
    memory.limit_to_share(share, GPU)
    assert memory.process_bytes(GPU) == pytest.approx(expected * GIB)


def test_available_cpu_memory_is_positive_and_within_process_memory() -> None:
    assert 0 < memory.available_bytes(CPU) <= memory.process_bytes(CPU)


def test_process_memory_is_bounded_by_the_container_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("memory.max", "memory.limit_in_bytes")]
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", files)
    machine = memory.process_bytes(CPU)
    assert machine > 1000
    for limit, expected in (("max\n", machine), ("1000\n", 1000), (f"{2**63 - 4096}\n", machine)):
        files[0].write_text(limit)
        assert memory.process_bytes(CPU) == expected


def test_file_cache_of_a_container_counts_as_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("meminfo", "memory.max", "memory.current", "memory.stat")
    machine, limit, used, parts = (tmp_path / name for name in names)
    monkeypatch.setattr(memory, "CONTAINER_PARTS", [parts])
    monkeypatch.setattr(memory, "MEMORY", machine)
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", [limit])
    monkeypatch.setattr(memory, "CONTAINER_USE", [used])
    assert memory.free_bytes() > 0, "the machine's memory is used if the files are missing"
    machine.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  700 kB\n")
    assert memory.free_bytes() == 700 * 1024
    used.write_text("2000\n")
    limit.write_text("max\n")
    assert memory.free_bytes() == 700 * 1024
    limit.write_text("2500\n")
    assert memory.free_bytes() == 500
    parts.write_text("anon 1000\nfile 900\ninactive_file 600\nactive_file 200\n")
    assert memory.free_bytes() == 1300


def test_container_limit_and_use_are_read_from_one_cgroup_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("limit", "used", "stat"):
        (tmp_path / f"{kind}1").write_text(
            "total_active_file 0\n" if kind == "stat" else {"limit": "9000", "used": "8000"}[kind]
        )
    (tmp_path / "limit2").write_text("max")
    (tmp_path / "used2").write_text("1")
    for constant, kind in (("LIMITS", "limit"), ("USE", "used"), ("PARTS", "stat")):
        monkeypatch.setattr(memory, f"CONTAINER_{constant}", [tmp_path / f"{kind}{version}" for version in (2, 1)])
    assert memory.free_bytes() == 1000


@dataclass(slots=True)
class Slots:
    rows: np.ndarray


@dataclass
class Data:
    table: torch.Tensor
    rows: list[np.ndarray]
    names: tuple[str, ...] = ("a", "b")


def test_shared_buffers_are_counted_once(tmp_path: Path) -> None:
    table = torch.zeros(100)
    array = np.zeros(50)
    assert memory.bytes_by_device(Data(table, [array])) == {CPU: 400 + 400}
    assert memory.bytes_by_device([Data(table, [array]), {"view": table[:10]}, array[::2]]) == {CPU: 800}
    mapped = np.memmap(tmp_path / "file", np.uint8, "w+", shape=(1000,))
    assert memory.bytes_by_device((mapped, torch.from_numpy(mapped))) == {CPU: 1000}
    graph = torch.sparse_csr_tensor(torch.arange(4), torch.arange(3), torch.ones(3))
    assert memory.bytes_by_device(graph) == {CPU: 4 * 8 + 3 * 8 + 3 * 4}
    graphs = [torch.sparse_csr_tensor(torch.arange(4), torch.arange(3), torch.ones(3)) for _ in range(10)]
    assert memory.bytes_by_device(graphs) == {CPU: 10 * (4 * 8 + 3 * 8 + 3 * 4)}
    assert memory.bytes_by_device(Slots(array)) == {CPU: 400}
    assert memory.bytes_by_device([Slots(np.zeros(50)) for _ in range(3)]) == {CPU: 1200}
    texts = pa.array(["abc"] * 100)
    assert memory.bytes_by_device([texts, texts.slice(3)]) == {CPU: texts.get_total_buffer_size()}
    rows = pa.table({"text": texts})
    assert memory.bytes_by_device([rows, rows.to_batches()[0]]) == {CPU: texts.get_total_buffer_size()}
    loop: list[object] = [table]
    loop.append(loop)
    assert memory.bytes_by_device(loop) == {CPU: 400}


def test_cache_drops_the_least_recently_used_value_above_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KEPT", OrderedDict())
    monkeypatch.setattr(memory, "process_bytes", lambda device: 1000)  # caches may hold 500 bytes
    made: list[int] = []

    @memory.BoundedCache
    def table(size: int) -> torch.Tensor:
        made.append(size)
        return torch.zeros(size, dtype=torch.uint8)

    assert table(200) is table(200)
    table(150)
    table(200)  # now the last used
    table(180)
    table(200)
    assert made == [200, 150, 180]
    table(150)  # was dropped to make room for 180
    assert made == [200, 150, 180, 150]
    assert len(table(2000)) == 2000, "a value larger than the limit is returned and kept"
    table(2000)
    assert made[-2:] == [150, 2000]
    table.cache_clear()
    table(2000)
    assert table.misses == 1
    assert table.__name__ == "table"


def test_all_caches_share_one_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three values of 200 bytes exceed the 500: the least recently used one is dropped, of whichever function it is."""
    monkeypatch.setattr(memory, "_KEPT", OrderedDict())
    monkeypatch.setattr(memory, "process_bytes", lambda device: 1000)
    functions = [memory.BoundedCache(lambda size: torch.zeros(size, dtype=torch.uint8)) for _ in range(3)]
    for function in functions:
        function(200)
    assert sum(memory.bytes_by_device(list(memory._KEPT.values())).values()) == 400
    for function in reversed(functions):
        function(200)
    assert [function.misses for function in functions] == [2, 1, 1]
    functions[1].cache_clear()
    functions[0](200)
    assert [function.misses for function in functions] == [2, 0, 1]
