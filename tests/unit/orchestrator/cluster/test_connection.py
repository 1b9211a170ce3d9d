"""Start of a local Ray cluster: a failure exits with code 3 and its reason, a slow start is repeated."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ray

from orchestrator.cluster import connection
from orchestrator.errors import UNAVAILABLE, UserError
from tests.support.waiting import HANG_SECONDS


@pytest.mark.parametrize("error", [Exception, OSError, RuntimeError])
def test_a_cluster_that_does_not_start_is_unavailable(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def init(**settings: Any) -> None:
        raise error("Some processes failed to start.\nSee the logs")

    stopped: list[bool] = []
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))
    monkeypatch.setattr(connection, "TOKEN", tmp_path / "token")
    with (
        pytest.raises(UserError, match=r"on this machine: Some processes failed") as caught,
        connection.cluster(None),
    ):
        pass
    assert caught.value.code == UNAVAILABLE
    assert stopped, "the processes that had started must be stopped"


@pytest.mark.parametrize("failures", [1, connection.START_ATTEMPTS])
def test_a_cluster_that_starts_too_slowly_is_started_again(
    failures: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def init(**settings: Any) -> None:
        assert all(process.wait(HANG_SECONDS) < 0 for process in started), "processes of the failed start are left"
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        if len(started) <= failures:
            raise Exception("The current node timed out during startup.")

    here = {"NodeManagerAddress": "127.0.0.1", "NodeID": "1", "Alive": True, "Resources": {"CPU": 2.0}}
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: [here])
    monkeypatch.setattr(connection, "TOKEN", tmp_path / "token")
    too_slow = failures == connection.START_ATTEMPTS
    expected = pytest.raises(UserError, match="Cannot start") if too_slow else nullcontext()
    try:
        with pytest.warns(UserWarning, match="started again"), expected, connection.cluster(None) as nodes:
            assert nodes == [{"CPU": 2.0, "GPU": 0.0}]
        assert len(started) == min(failures + 1, connection.START_ATTEMPTS)
    finally:
        for process in started:
            process.kill()
            process.wait()
