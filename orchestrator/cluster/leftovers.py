"""Clean up after local clusters whose driver is dead: two of Ray's agents outlive a killed head."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

MARK = "ORCHESTRATOR_LOCAL_CLUSTER"
"""Environment variable of a local cluster's processes: pid and start time of their driver."""


@contextmanager
def marked() -> Iterator[None]:
    """Mark the processes started within the block as those of this driver's cluster."""
    os.environ[MARK] = _mark(psutil.Process())
    try:
        yield
    finally:
        del os.environ[MARK]


def end_leftovers() -> int:
    """Kill this user's processes of clusters whose driver is dead. Returns their number."""
    ended = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # of another user, or already gone
            mark = process.environ().get(MARK)
            if mark and not _is_alive(mark):
                process.kill()
                ended += 1
    return ended


def _mark(driver: psutil.Process) -> str:
    return f"{driver.pid}:{driver.create_time():.1f}"


def _is_alive(mark: str) -> bool:
    with suppress(psutil.NoSuchProcess, ValueError):
        driver = psutil.Process(int(mark.partition(":")[0]))
        return _mark(driver) == mark and driver.status() != psutil.STATUS_ZOMBIE
    return False
