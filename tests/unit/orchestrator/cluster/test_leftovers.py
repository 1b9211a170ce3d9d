"""Processes left by the clusters of dead drivers are ended, those of living drivers are not."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from orchestrator.cluster import leftovers
from tests.support.waiting import HANG_SECONDS


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_only_processes_of_dead_drivers_are_ended() -> None:
    with leftovers.marked():
        mine = sleeper()
    driver = sleeper()
    mark = leftovers._mark(driver.pid)
    env = os.environ | {leftovers.MARK: mark}
    theirs = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    unmarked = sleeper()
    try:
        leftovers.end_leftovers()
        assert [each.poll() for each in (mine, theirs, unmarked)] == [None] * 3
        driver.kill()
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        leftovers.end_leftovers()
        assert theirs.wait(HANG_SECONDS) < 0
        assert [each.poll() for each in (mine, unmarked)] == [None] * 2
    finally:
        for each in (mine, driver, theirs, unmarked):
            each.kill()
            each.wait()
    assert leftovers.MARK not in os.environ


def test_reused_process_id_is_not_a_living_driver() -> None:
    assert leftovers._is_alive(leftovers._mark(os.getpid()))
    assert not leftovers._is_alive(f"{os.getpid()}:1:{leftovers._namespace()}")
    assert not leftovers._is_alive("nonsense")


def test_driver_is_alive_after_a_change_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = leftovers._mark(os.getpid())
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: 1.0)
    assert leftovers._is_alive(mark)


def test_process_of_another_pid_namespace_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pid of another namespace denotes another process in this one, or none."""
    mark = leftovers._mark(os.getpid()).replace(leftovers._namespace(), "pid:[1]")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | {leftovers.MARK: mark}
    )
    try:
        monkeypatch.setattr(psutil, "process_iter", lambda: [psutil.Process(process.pid)])
        assert leftovers.end_leftovers() == 0
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
