"""A trial of several workers, without Ray: its reports when workers are lost, and their interval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.train import WorkerGroupError

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.runs import reports
from orchestrator.runs.train import RETRIES
from orchestrator.storage.settings import Timeouts
from orchestrator.sweeps import group
from orchestrator.sweeps.group import GroupTrial


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trial whose groups are faked. Its wait for room advances a fake clock by a second at each check."""
    now = [0.0]
    monkeypatch.setattr(group.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(group, "remove_groups", lambda home: None)
    monkeypatch.setattr(group.heartbeat, "announce", lambda *about: None)
    trial = GroupTrial.__new__(GroupTrial)
    trial._spec = SimpleNamespace(resources=Resources(workers=2))  # type: ignore[assignment]
    trial._home = trial._data = tmp_path
    (tmp_path / group.train.INBOX).touch()
    trial._stop_file, trial._timeouts = tmp_path / "stop", Timeouts(1, 1)
    trial._stopped = trial._stop_file.exists
    trial._pace = {"seconds": 4.0}
    trial._units_at_rungs = False
    trial._group, trial._deaths, trial._last = None, 0, {"epoch": 3, "rows": ["of before"]}

    def wait_for_room(resources: Resources, waiting: Callable[[], bool]) -> Resources | None:
        for _ in range(100):
            if not waiting():
                return None
            now[0] += 1
        return resources

    monkeypatch.setattr(group, "wait_for_room", wait_for_room)
    return trial


class Lost:
    """A group that has lost a worker, or failed with ``error``, as soon as it is started."""

    error: Exception = ActorDiedError()

    def ended(self, timeout: float) -> bool:
        return True

    def result(self) -> Any:
        raise self.error


def test_allowance_of_a_starting_group_includes_the_start_timeout(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise --trial-timeout would end a slow start as a hung trial."""
    allowances: list[float] = []
    trial._timeouts = Timeouts(1, 300)
    monkeypatch.setattr(group.heartbeat, "announce", lambda home, allowance: allowances.append(allowance))
    monkeypatch.setattr(group.train, "start", lambda *a, **k: Lost())
    trial.step()
    assert allowances == [300 + group.heartbeat.START_SECONDS]


def test_trial_reports_while_it_waits_for_lost_workers(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise --trial-timeout would end the trial as a hung one on a busy cluster."""
    started: list[Any] = []
    monkeypatch.setattr(group.train, "start", lambda *a, **k: started.append(k["pace"]) or Lost())
    assert trial.step() == {"epoch": 3, "rows": [], reports.HELD: True}
    lost = trial.step()
    assert (lost["epoch"], lost["rows"], started) == (3, [], [{"seconds": 4.0}]), "a first group waits without a limit"
    assert trial.step() == {"epoch": 3, "rows": []}
    trial._stop_file.touch()
    assert trial.step() == {"epoch": 3, "rows": [], reports.SAVED: True}
    assert len(started) == 1


def test_a_lost_device_is_reported_each_time_and_the_last_one_fails_the_trial(
    trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these reports the sweep can exclude a device while the trial continues."""
    text = "the accelerator was lost (GPU 3 of node ab): CUDA error: an illegal access"
    monkeypatch.setattr(Lost, "error", WorkerGroupError("lost", {0: reports.DeviceLost(text)}))
    monkeypatch.setattr(group, "wait_for_room", lambda resources, waiting: resources)
    monkeypatch.setattr(group.train, "start", lambda *a, **k: Lost())
    payloads = [payload for _ in range(2 * (RETRIES + 1)) if not (payload := trial.step()).get(reports.HELD)]
    assert {payload[reports.LOST] for payload in payloads} == {f"worker 0: {text}"}
    assert [payload.get("error") for payload in payloads] == [*[None] * RETRIES, f"worker 0: {text}"]


@pytest.mark.usefixtures("clock")
def test_workers_of_a_group_report_at_the_drivers_pace(
    toy_workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They report immediately at rungs and at the end; between them, no more often than the driver's interval."""
    loops: list[dict[str, Any]] = []
    payloads: list[dict[str, Any]] = []

    def trainer(worker: object, *, train_loop_config: dict[str, Any], **settings: Any) -> Any:
        loops.append(train_loop_config)
        return SimpleNamespace(fit=None)

    monkeypatch.setattr(group.train, "torch_trainer", lambda: trainer)
    monkeypatch.setattr(group.train, "Group", lambda *parts: None)
    monkeypatch.setattr(group.train, "group_nodes", lambda: lambda: False)
    monkeypatch.setattr(group.heartbeat, "announce", lambda home, rank: None)
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    monkeypatch.setattr("ray.train.report", payloads.append)
    spec = ExperimentSpec(workload="toy", params={"slow": 1.0}, plan=Plan(epochs=9, refit=True, decide_at=(4,)))
    for pace in ({"seconds": 3.0}, None):
        home = tmp_path / str(pace)
        group.train.start(
            spec,
            home,
            tmp_path,
            stop_file=tmp_path / "stop",
            timeouts=Timeouts(1, 1),
            pace=pace,
            units_at_rungs=pace is None,
        )
        group.train.train_worker(loops.pop())
    assert [payload["epoch"] for payload in payloads] == [3, 4, 7, 9, *range(1, 10)]
    with_units = [payload["epoch"] for payload in payloads if payload["units"]]
    assert with_units == [9, 4, 9], "units at rungs are sent on request, as for racing"
