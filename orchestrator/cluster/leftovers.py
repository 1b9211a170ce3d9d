"""Clean up after local clusters whose driver is dead: two of Ray's agents outlive a killed head."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MARK = "ORCHESTRATOR_LOCAL_CLUSTER"
"""Environment variable of a local cluster's processes: their driver's pid, start, and namespace of processes."""


@contextmanager
def marked() -> Iterator[None]:
    """Mark the processes started within the block as those of this driver's cluster."""
    os.environ[MARK] = _mark(os.getpid())
    try:
        yield
    finally:
        del os.environ[MARK]


def is_own(process: psutil.Process) -> bool:
    """Whether a process belongs to this driver's cluster."""
    with suppress(psutil.Error, OSError):  # already gone
        own: bool = process.environ().get(MARK) == _mark(os.getpid())
        return own
    return False


def end_leftovers() -> int:
    """Kill this user's processes of clusters whose driver is dead. Returns their number.

    Processes of another namespace, such as a container's, are left alone: their driver cannot be seen from here.
    """
    return _kill(lambda mark: mark.endswith(f":{_namespace()}") and not _is_alive(mark))


def end_own() -> int:
    """Kill the processes of this driver's cluster, as after a start that failed. Returns their number."""
    own = _mark(os.getpid())
    return _kill(lambda mark: mark == own)


def _kill(is_meant: Callable[[str], bool]) -> int:
    ended = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # of another user, or already gone
            mark = process.environ().get(MARK)
            if mark and process.pid != os.getpid() and is_meant(mark):
                process.kill()
                ended += 1
    return ended


def _mark(pid: int) -> str:
    return f"{pid}:{start_of(pid)}:{_namespace()}"


def start_of(pid: int) -> str:
    """Start of a process since boot, in ticks: the clock may be set while it runs. Raises psutil.NoSuchProcess."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return f"{psutil.Process(pid).create_time():.0f}"  # not Linux, or no such process


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_alive(mark: str) -> bool:
    with suppress(psutil.NoSuchProcess, ValueError):
        pid = int(mark.partition(":")[0])
        return _mark(pid) == mark and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
