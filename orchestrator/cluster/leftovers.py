"""Processes of local clusters whose driver is dead: two agents of Ray outlive a head that was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

MARK = "ORCHESTRATOR_LOCAL_CLUSTER"
"""Environment variable of a local cluster's processes: pid and start of the driver that started them."""


@contextmanager
def marked() -> Iterator[None]:
    """Within it the processes that this one starts are marked as its own cluster's."""
    os.environ[MARK] = _mark(psutil.Process())
    try:
        yield
    finally:
        del os.environ[MARK]


def end_leftovers() -> int:
    """Kill this user's processes of clusters whose driver is dead. Returns how many there were."""
    ended = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # another user's, or gone meanwhile
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
