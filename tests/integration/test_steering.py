"""Add and stop requests to a running sweep on a real Ray, also when its driver is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import SPACES, THIRD_PARTY, Start, Store, trials, typed
from workloads import catalog

pytestmark = pytest.mark.faults
SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "epochs=200", "slow=0.1"]


def does(home: Path, *words: str) -> None:
    done = typed(home, *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def installed_toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the toy workload in this process too."""
    monkeypatch.syspath_prepend(str(THIRD_PARTY))
    catalog.offered.cache_clear()
    yield
    catalog.offered.cache_clear()


def test_add_and_stop_requests_are_applied_also_after_a_resume(home: Path, start: Start) -> None:
    first = start(*SWEEP, "--trials", "2", "--concurrency", "1", "--seed", "1", "--constraint", "parameters<=100")
    first.until(lambda: "trial 0 started" in first.text())
    does(home, "add", "latest", "lr=0.125")
    does(home, "stop", "latest/0", "--as", "failed")
    first.until(lambda: "Trial 1 was added" in first.text() and "trial 0 failed" in first.text())
    first.until(lambda: "trial 1 started" in first.text())
    does(home, "add", "latest", "lr=0.0625")
    does(home, "stop", "latest/1")
    first.kill()  # the requests may have been read or not
    refused = typed(home, "add", "latest", "lr=7")
    assert refused.returncode == 2
    assert "lr is outside the search space" in refused.stderr
    second = start("sweep", "--resume", "latest")
    second.until(lambda: "trial 2 started" in second.text())
    does(home, "stop", "latest/2")
    assert second.end() == 0, second.text()
    rows = trials(home)
    assert [row["state"] for row in rows] == ["fail", "pruned", "pruned", "complete"]
    assert [row["params.lr"] for row in rows[1:3]] == [0.125, 0.0625]
    assert rows[0]["cause"] == "it was stopped by a request"
    Store(home).check()
    finished = typed(home, "add", "latest", "lr=0.1")
    assert finished.returncode == 2
    assert "has finished" in finished.stderr
