"""What a dead driver's cluster has left is ended; a living one's is not."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from orchestrator.cluster import leftovers
from tests.support.waiting import HANG_SECONDS


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_only_processes_of_dead_drivers_are_ended() -> None:
    with leftovers.marked():
        mine = sleeper()
    driver = sleeper()
    mark = leftovers._mark(psutil.Process(driver.pid))
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


def test_a_number_that_another_process_has_now_is_no_driver() -> None:
    assert not leftovers._is_alive(f"{os.getpid()}:1.0")
    assert not leftovers._is_alive("nonsense")
