"""A Ray cluster started before the command and kept after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import OutOfMemoryError
from ray.util import placement_group_table

from tests.support.commands import ROOT, THIRD_PARTY
from tests.support.waiting import HANG_SECONDS

IDLE = ("IDLE", "DashboardAgent", "RuntimeEnvAgent", "_AutoscalingCoordinatorActor")
"""Names of Ray's own and of idle processes."""


KILLED = OutOfMemoryError(
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, ID: 943f) was "
    "1.54GB used / 1.76GB limit (0.877912)\nOOM kill reason: ...\n"
)  # as Ray 2.60 says it
TOLD = (
    "out of memory (1.54GB of the node's 1.76GB were used), killed by Ray's memory monitor: accumulate=auto, a smaller "
    "batch_size, precision=bf16 or fewer trials at once (--concurrency) may fit"
)


class Lost(Exception):
    """A worker that did not answer, as Ray Train wraps it (test_ray_compat.py compares it with Train's own)."""

    def __init__(self, failure: Exception) -> None:
        self.health_check_failure = failure


@contextmanager
def logical(
    monkeypatch: pytest.MonkeyPatch, nodes: Sequence[Mapping[str, float]], *, dashboard: bool = False
) -> Iterator[str]:
    """Start ``nodes`` (num_cpus, num_gpus) on this machine and connect in a separate job. Yields the address."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", f"{THIRD_PARTY}:{ROOT}")
    memory = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**nodes[0], **memory, "include_dashboard": dashboard})
    try:
        for node in nodes[1:]:
            cluster.add_node(**node, **memory)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def groups() -> list[dict[str, Any]]:
    """Placement groups of all jobs that hold or wait for resources."""
    return [group for group in placement_group_table().values() if group["state"] != "REMOVED"]


def workers_reserved() -> list[dict[str, Any]]:
    """The placement groups with CPUs."""
    return [group for group in groups() if any("CPU" in bundle for bundle in group["bundles"].values())]


def busy() -> list[psutil.Process]:
    """Busy worker processes: those of a task or an actor."""
    found = []
    for process in psutil.Process().children(recursive=True):
        title = _title(process)
        if title.startswith("ray::") and not any(word in title for word in IDLE) and not _exits(process):
            found.append(process)
    return found


def _exits(process: psutil.Process) -> bool:
    """Whether a worker is in Ray's own exit, where it can hang for ever: the thread of its connections has ended."""
    for name in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended meanwhile
            if name.read_text().strip() == "worker.io":
                return False
    return True


def named(name: str) -> list[psutil.Process]:
    """Busy processes of actors of class ``name``."""
    return [process for process in busy() if name in _title(process)]


def _title(process: psutil.Process) -> str:
    """First word of a command line, which Ray sets; empty for a process that has ended meanwhile."""
    with suppress(psutil.Error):
        return (process.cmdline() or [""])[0]
    return ""


def soon(condition: Callable[[], Any], seconds: float = HANG_SECONDS) -> bool:
    """Wait until ``condition`` is true: the cluster learns of a death a moment later."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
