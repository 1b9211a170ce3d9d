"""The trial manager of a sweep: trials that it starts, records of reports and ends, budgets and stops."""

from __future__ import annotations

import errno
import io
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from orchestrator.config.objectives import Unreported
from orchestrator.config.spec import Resources, SweepSpec
from orchestrator.console import show
from orchestrator.engine.loop import Diverged, Row
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.runs import reports
from orchestrator.runs.driver_status import DriverStatus
from orchestrator.search import curves, unit_values
from orchestrator.search.pbt import Population
from orchestrator.search.schedulers import rungs
from orchestrator.search.study import Study
from orchestrator.search.trial_params import TrialParams
from orchestrator.storage import records, run_lookup, usage_log
from orchestrator.storage.settings import Timeouts
from orchestrator.sweeps import budget as budget_module
from orchestrator.sweeps import trial_manager
from orchestrator.sweeps.trial_manager import TrialManager
from tests.support.searching import ERROR, attributes, sweep
from tests.support.toy import Clock


class Recorder:
    """Replaces the tracker: the open runs, how they ended, and what was logged to them."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ends: dict[str, str] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.params: dict[str, dict[str, Any]] = {}
        self.logged: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.known: set[str] = set()
        """Runs of an earlier process."""

    def start(self, key: str, name: str, *, params: Any, tags: Any, parent: str) -> None:
        assert key not in self.open, "opened twice"
        self.open.append(key)
        self.params[key], self.tags[key] = dict(params), dict(tags)

    def log(self, key: str, rows: list[Row]) -> None:
        self.logged.setdefault(key, []).extend((row.epoch, dict(row.metrics)) for row in rows)

    def tag(self, key: str, tags: dict[str, str]) -> None:
        self.tags[key].update(tags)

    def end(self, key: str, status: str) -> None:
        assert key in self.open or key in self.known, "ended, and never opened or ended before"
        if key in self.open:
            self.open.remove(key)
        self.ends[key] = status

    def opened(self, key: str) -> str | None:
        return "id" if key in self.known else None


def space(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2)}


class Driver:
    """A manager of a toy sweep, and the other parts of its driver."""

    def __init__(self, storage: Path, spec: SweepSpec) -> None:
        found = storage / "sweep"
        if found.exists():
            self.folder = run_lookup.find(storage, "sweep")
            self.folder.acquire()
        else:
            self.folder = records.create(
                storage, "sweep", "toy", {"sweep": spec.model_dump(mode="json")}, "orchestrator sweep toy", "sweep"
            )
        self.tracker, self.lines, self.notes = Recorder(), list[str](), list[str]()
        self.events: list[str] = []
        self.running: list[str] = []
        self.trained: list[int] = []
        self.work: list[tuple[Any, ...]] = []
        self.interrupted = False
        session = SimpleNamespace(
            folder=self.folder,
            tracker=self.tracker,
            settings=SimpleNamespace(data=Path("data"), timeouts=Timeouts(600, 300)),
            interrupts=SimpleNamespace(stop_requested=lambda: self.interrupted),
            console=SimpleNamespace(
                say=self.lines.append,
                begin=lambda *of: self.work.append(("begin", *of)),
                event=self.events.append,
            ),
            print_progress=self._progress,
            notify=lambda event, message, *more: self.notes.append(f"{event}: {message}"),
            trained_on=lambda *about: None,
            publisher=SimpleNamespace(trained=self.trained.append, last=DriverStatus()),
            started=time.monotonic(),
        )
        self.study: Study
        if spec.search.scheduler == "pbt":
            self.study = Population(self.folder.path, spec, [ERROR], space, False, changeable=["lr"])
        else:
            self.study = Study(self.folder.path, spec, [ERROR], space, False)
        self.manager = TrialManager(self.study, session, spec, TrialParams("toy", {}, None))  # type: ignore[arg-type]

    def _progress(self, done: int, total: int, unit: str, detail: Callable[[], str] | None = None) -> None:
        self.running.append(detail()) if detail else self.work.append((done, total, unit))

    def die(self) -> None:
        """Release the locks, as if the process had died without a message."""
        assert self.folder._lock
        self.folder._lock.close()

    def begin(self) -> int:
        config = self.manager.next()
        assert config is not None
        return int(config["number"])

    def says(self, seed_run: int, epoch: int, value: float, ended: str | None = None, units: Any = None) -> bool:
        about = attributes(value, epoch, epoch)
        rows = [[epoch, 1.7e9, {"train/loss": 1.0, "validation/error": value}]]
        return self.manager.result(seed_run, {"rows": rows, "ended": ended, "units": units, **about})

    @property
    def states(self) -> list[str]:
        return [trial.state.name for trial in self.study.trials]


Drive = Callable[..., Driver]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (trial_manager, budget_module, usage_log):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def drive(toy_workload: str, tmp_path: Path) -> Drive:
    """Starts a driver of the described sweep; a further call starts the next driver of this sweep."""

    def begin(**asked: Any) -> Driver:
        spec = sweep(**{"epochs": 9, "trials": 3, "scheduler": "none"} | asked)
        if spec.search.scheduler == "pbt":
            plan = spec.plan.model_copy(update={"refit": False, "decide_at": rungs(9, "pbt")})
            spec = spec.model_copy(update={"plan": plan})
        return Driver(tmp_path, spec)

    return begin


# Trials that are started


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize(
    ("draw", "cause"),
    [
        (lambda trial: 1 // 0, "The search space failed: ZeroDivisionError: integer division or modulo by zero"),
        (lambda trial: None, "The search space must return the parameters: got NoneType; allowed: a dict."),
        (lambda trial: {"lr": np.int64(1)}, "The search space failed: TypeError: "),
        (lambda trial: {"lr": "much"}, "Parameter lr is not valid: got 'much'"),
    ],
)
def test_parameters_that_cannot_be_drawn_are_a_failed_trial(
    draw: Callable[[Any], Any], cause: str, seeds: int, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe before the start has seen only the first draws."""
    monkeypatch.setattr(sys.modules[__name__], "space", lambda trial: draw(trial) if trial.number == 1 else {"lr": 0.1})
    driver = drive(seeds=seeds)
    assert [driver.begin(), driver.begin()] == [0, 2 * seeds]
    assert driver.states == ["RUNNING", "FAIL", "RUNNING"]
    assert driver.study.trials[1].user_attrs["cause"].startswith(cause)
    assert driver.lines[-1].startswith("trial 1")
    assert not [key for key in driver.tracker.open if key.startswith("sweep/1")]
    driver.die()
    resumed = drive(seeds=seeds)
    assert [resumed.begin(), resumed.begin()] == [0, 2 * seeds]


def test_full_disk_while_drawing_does_not_fail_the_trial(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial is started by a resume."""

    def full(trial: Any) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device")  # of the journal, which stores suggestions

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[__name__], "space", full)
        driver = drive()
        with pytest.raises(OSError, match="No space left"):
            driver.begin()
    driver.die()
    assert drive().begin() == 0


def test_resume_fails_the_trial_that_an_earlier_version_could_not_draw(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()
    driver.study.optuna_study.ask()  # an error that killed the driver
    driver.die()
    monkeypatch.setattr(sys.modules[__name__], "space", lambda trial: {"lr": 0.1 / trial.number})
    resumed = drive()
    assert resumed.begin() == 1
    assert resumed.states == ["FAIL", "RUNNING"]


def test_next_returns_the_complete_config_of_a_trial(drive: Drive, tmp_path: Path) -> None:
    driver = drive()
    config = driver.manager.next()
    assert config is not None
    spec = config.pop("spec")
    assert config == {
        "number": 0, "folder": str(tmp_path / "sweep" / "trials" / "00000"), "data": "data",
        "stop_file": str(tmp_path / "sweep" / "stop"), "keep": 2, "save_at_rungs": False,
        "measure": [], "units_at_rungs": False, "timeouts": [600, 300],
        "pace": {"seconds": 0.0, "longest": 10.0},
    }  # fmt: skip
    assert spec["params"]["lr"] == driver.study.trials[0].params["lr"]
    assert spec["params"]["momentum"] == 0.5, "the defaults are missing"


def test_mlflow_keeps_the_recorded_resources_after_a_resume_with_others(drive: Drive) -> None:
    recorded = drive()
    key = f"sweep/{recorded.begin()}"
    recorded.die()
    spec = recorded.manager._spec.model_copy(update={"resources": Resources(cpus_per_worker=4)})
    resumed = Driver(recorded.folder.path.parent, spec)
    config = resumed.manager.next()
    assert config is not None
    assert config["spec"]["resources"]["cpus_per_worker"] == 4
    assert resumed.tracker.params[key]["cpus_per_worker"] == recorded.tracker.params[key]["cpus_per_worker"] == 1


def test_each_seed_has_a_place_a_run_and_a_name_of_its_own(drive: Drive) -> None:
    driver = drive(seeds=2, trials=1)
    driver.says(driver.begin(), 9, 0.5, "epochs")
    config = driver.manager.next()
    assert config is not None
    assert (config["number"], Path(config["folder"]).name) == (1, "00000-seed1")
    assert driver.tracker.open == ["sweep/0/1"]
    assert driver.tracker.ends == {"sweep/0/0": "FINISHED"}
    assert driver.tracker.tags["sweep/0/1"]["orchestrator.seed"] == "1"
    driver.says(1, 9, 0.7, "epochs")
    assert [line.split()[:5] for line in driver.lines] == [
        ["trial", "0", "seed", "0", "complete"],
        ["trial", "0", "seed", "1", "complete"],
    ]


# Reports and ends


def test_end_of_a_trial_is_recorded_in_study_tracker_and_console(drive: Drive) -> None:
    driver = drive(scheduler="asha", decide_at=(3,), trials=4)
    for _ in range(3):
        driver.begin()
    assert driver.says(0, 3, 0.5) is False
    assert driver.says(1, 3, 0.9) is True
    assert driver.manager.result(2, reports.failure_payload(Diverged(2, "train/loss", math.nan))) is True
    assert driver.says(0, 9, 0.4, "epochs") is True
    assert driver.states == ["COMPLETE", "PRUNED", "FAIL"]
    assert driver.tracker.ends == {"sweep/0": "FINISHED", "sweep/1": "FINISHED", "sweep/2": "FAILED"}
    states = {key: tags["orchestrator.state"] for key, tags in driver.tracker.tags.items()}
    assert states == {"sweep/0": "complete", "sweep/1": "pruned", "sweep/2": "failed"}
    assert driver.tracker.logged["sweep/0"] == [
        (3, {"train/loss": 1.0, "validation/error": 0.5}), (9, {"train/loss": 1.0, "validation/error": 0.4}),
    ]  # fmt: skip
    assert driver.lines[-1].startswith("trial 0 complete error 0.4")
    assert any("train/loss is nan at epoch 2" in line for line in driver.lines)


def test_a_running_trial_is_shown_with_its_epoch_value_and_parameters(drive: Drive) -> None:
    driver = drive(trials=3)
    driver.begin()
    driver.begin()
    driver.says(1, 3, 0.25)
    params = [f"lr={show(trial.params['lr'])}" for trial in driver.study.trials]
    assert driver.events == [f"trial 0 started  {params[0]}", f"trial 1 started  {params[1]}"]
    assert driver.running == ["2 running: trial 0 0/9, trial 1 3/9 0.25"]
    shown = io.StringIO()
    Console(file=shown, width=80).print(driver.manager.view())
    rows = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert rows[0] == "trial epoch error best time parameters"
    assert rows[1].startswith("0 starts ")
    assert rows[1].endswith(params[0])
    assert rows[2].startswith("1 3/9 0.25 0.25 ")
    assert rows[2].endswith(params[1])
    assert "0/3 trials" in rows[3]
    driver.says(1, 9, 0.2, "epochs")
    assert driver.lines[-1] == f"trial 1 complete error 0.2  {params[1]}"
    assert driver.manager.current_status().best_params == {"lr": driver.study.trials[1].params["lr"]}


def test_progress_is_timed_from_the_begin_of_the_first_trial(drive: Drive) -> None:
    """Trials that end together have no first end to count from."""
    first = drive()
    first.begin()
    first.begin()
    first.says(0, 9, 0.4, "epochs")
    assert first.work == [("begin", "trial", 0), (1, 3, "trial")]
    first.die()
    second = drive()
    second.begin()
    assert second.work == [("begin", "trial", 1)]


def test_current_status_counts_trials_and_names_best_and_failure(drive: Drive) -> None:
    driver = drive(scheduler="asha", decide_at=(3,), trials=4)
    assert driver.manager.current_status().trials == {}
    for _ in range(3):
        driver.begin()
    driver.says(0, 3, 0.5)
    driver.says(1, 3, 0.9)
    assert driver.manager.live == 2
    driver.manager.result(2, reports.failure_payload(Diverged(2, "train/loss", math.nan)))
    driver.says(0, 9, 0.4, "epochs")
    driver.begin()
    found = driver.manager.current_status()
    assert found.trials == {"complete": 1, "pruned": 1, "fail": 1, "running": 1}
    assert (found.done, found.target, found.best) == (3, 4, {"trial": 0, "error": 0.4})
    assert found.trouble == "trial 2: train/loss is nan at epoch 2"
    assert found.device_seconds == pytest.approx(driver.manager.usage_log.seconds(), abs=1)
    assert sum(driver.trained) == 3, "the number of reported rows"


def test_report_of_an_ended_trial_returns_stop_and_is_not_logged(drive: Drive) -> None:
    driver = drive()
    seed_run = driver.begin()
    driver.manager.died(seed_run, "its process died 4 times")
    assert driver.says(seed_run, 5, 0.1) is True
    assert driver.tracker.ends == {"sweep/0": "FAILED"}
    assert driver.tracker.logged == {}
    driver.manager.died(seed_run, "again")
    driver.manager.close()
    assert driver.tracker.ends == {"sweep/0": "FAILED"}
    assert driver.study.trials[0].user_attrs["cause"] == "its process died 4 times"


def test_the_other_seeds_of_a_configuration_that_failed_are_ended_too(drive: Drive, clock: Clock) -> None:
    driver = drive(seeds=3, trials=1, max_device_hours=1.0)
    driver.says(driver.begin(), 9, 0.5, "epochs")
    assert [driver.begin(), driver.begin()] == [1, 2]
    clock.sleep(10)
    driver.manager.died(1, "killed")
    clock.sleep(5)
    assert driver.says(2, 4, 0.5) is True
    assert driver.tracker.ends == {"sweep/0/0": "FINISHED", "sweep/0/1": "FAILED", "sweep/0/2": "KILLED"}
    clock.sleep(1000)
    assert driver.manager.budget.used == 10 + 15, "ended seeds must hold no devices"
    driver.manager.close()
    assert driver.tracker.open == []


# Stops


@pytest.mark.parametrize("budget", [{"time_budget": 51.0}, {"max_device_hours": 51 / 3600}])
def test_both_budgets_leave_enough_for_the_finalists(drive: Drive, clock: Clock, budget: dict[str, float]) -> None:
    """Trials take 10 s, and two repeats follow: a fourth trial would leave no time for them, with two drivers too."""
    asked = {"trials": 9, "finalists": 2, "finalist_seeds": 2, **budget}
    driver = drive(**asked)

    def runs(driver: Driver, seconds: float = 10) -> int | None:
        config = driver.manager.next()
        if config is None:
            return None
        clock.sleep(seconds)
        driver.says(config["number"], 9, 0.5 + 0.1 * config["number"], "epochs")
        return int(config["number"])

    assert [runs(driver), runs(driver)] == [0, 1]
    if "max_device_hours" in budget:  # a new driver has all of its time budget
        driver.manager.close()
        driver.die()
        driver = drive(**asked)
    assert runs(driver, 9) == 2
    assert [runs(driver, 9), runs(driver, 9), runs(driver, 9)] == [3, 4, None]
    assert [trial.user_attrs.get("repeat_of") for trial in driver.study.trials[3:]] == [0, 1]
    assert driver.manager.exhausted
    driver.manager.close()
    assert driver.lines[-1].startswith("Stopped: the ")
    assert driver.lines[-1].endswith("budget takes no further trial")


def test_a_misspelt_metric_of_a_constraint_stops_the_sweep_at_once(drive: Drive) -> None:
    driver = drive(constraint=("eror<=1",))
    assert driver.says(driver.begin(), 1, 0.5) is True
    assert driver.manager.stopping()
    assert "Unknown metric of a constraint: got 'eror'" in str(driver.manager.refusal)
    assert driver.states == ["FAIL"]


def test_unreported_objective_stops_the_sweep_and_other_errors_do_not(drive: Drive) -> None:
    driver = drive()
    driver.begin(), driver.begin()
    assert driver.manager.result(1, reports.failure_payload(UserError("The checkpoint is of another run"))) is True
    assert (driver.manager.refusal, driver.manager.exhausted) == (None, False), "an error of only one trial"
    refused = Unreported("Unknown objective", got="'eror'", fix="Did you mean 'error'?")
    assert driver.manager.result(0, reports.failure_payload(refused)) is True
    assert driver.manager.stopping()
    assert driver.manager.next() is None
    assert driver.manager.exhausted
    assert str(driver.manager.refusal) == "Unknown objective: got 'eror'. Did you mean 'error'?"


def test_unwritable_storage_stops_the_sweep_and_fails_no_trial(drive: Drive) -> None:
    driver = drive()
    driver.begin(), driver.begin()
    full = UserError("The storage cannot be written", got="No space left on device", code=UNAVAILABLE)
    assert driver.manager.result(0, reports.failure_payload(full)) is True
    assert driver.manager.refusal is not None
    assert (driver.manager.refusal.code, str(driver.manager.refusal)) == (UNAVAILABLE, str(full))
    assert sorted(driver.study.unfinished()) == [0, 1], "a resume needs the unfinished trials"


@pytest.mark.parametrize("seeds", [1, 2])
def test_an_interrupt_leaves_all_to_be_resumed(seeds: int, drive: Drive) -> None:
    driver = drive(seeds=seeds, trials=4)
    driver.begin()
    second = driver.begin()
    if seeds == 2:
        driver.says(second, 9, 0.5, "epochs")
        driver.begin()
    driver.interrupted = True
    assert driver.manager.next() is None
    assert driver.manager.exhausted
    running = list(driver.tracker.open)
    driver.manager.close()
    assert driver.tracker.open == []
    assert all(driver.tracker.ends[key] == "KILLED" for key in running)
    assert driver.states == ["RUNNING", "RUNNING"]
    driver.die()
    again = drive(seeds=seeds, trials=4)
    assert [again.begin(), again.begin()] == ([0, 1] if seeds == 1 else [0, 3])


def test_a_spent_time_budget_leaves_nothing_running(drive: Drive, clock: Clock) -> None:
    driver = drive(time_budget=60.0)
    driver.begin(), driver.begin()
    driver.says(0, 9, 0.5, "epochs")
    clock.sleep(61)
    assert (driver.manager.next(), driver.manager.exhausted, driver.manager.stopping()) == (None, True, True)
    driver.manager.close()
    assert driver.states == ["COMPLETE", "FAIL"]
    assert driver.study.trials[1].user_attrs["cause"] == "the time budget was spent"
    assert driver.study.failed() == [], "a spent budget is not a failure"
    assert driver.tracker.ends == {"sweep/0": "FINISHED", "sweep/1": "KILLED"}
    assert driver.lines[-1] == "Stopped: the time budget was spent"


def test_time_budget_spent_with_the_last_trial_is_not_reported(drive: Drive, clock: Clock) -> None:
    driver = drive(time_budget=60.0, trials=1)
    driver.says(driver.begin(), 9, 0.5, "epochs")
    clock.sleep(61)
    driver.manager.close()
    assert not any("Stopped" in line for line in driver.lines)


@pytest.mark.parametrize("asked", [{"seeds": 3, "trials": 2}, {"scheduler": "pbt", "trials": 4}])
@pytest.mark.parametrize("cause", ["time", "device-hour"])
def test_spent_budget_ends_all_runs_of_trials_with_seeds_or_members(
    asked: dict[str, Any], cause: str, drive: Drive, clock: Clock
) -> None:
    limit: dict[str, Any] = {"time_budget": 60.0} if cause == "time" else {"max_device_hours": 100 / 3600}
    driver = drive(**asked, **limit)
    population = asked.get("scheduler") == "pbt"
    first, second = driver.begin(), driver.begin()
    driver.says(first, 1 if population else 9, 0.5, None if population else "epochs")
    assert driver.states == ["RUNNING", "RUNNING"], "the first one waits for other members or seeds"
    clock.sleep(120)
    assert driver.says(second, 1, 0.7) is population
    driver.manager.close()
    assert driver.tracker.open == []
    assert {driver.tracker.ends[key] for key in driver.tracker.ends} <= {"FINISHED", "KILLED"}
    if population:  # no member has ended, so there is no winner: a resume continues
        assert set(driver.states) == {"RUNNING"}
        driver.die()
        resumed = drive(**asked, **limit)
        assert resumed.study.unfinished() == [first, second]
        assert (resumed.manager.next() is None) == (cause == "device-hour")
    else:
        assert set(driver.states) == {"FAIL"}
        assert driver.study.unfinished() == []


def test_device_hour_budget_finishes_begun_seeds_and_begins_no_trial(drive: Drive, clock: Clock) -> None:
    """Two configurations of three seeds. When no further one fits, the seeds of the first are still run."""
    driver = drive(seeds=3, trials=2, max_device_hours=35 / 3600)
    for seed in range(3):
        assert driver.begin() == seed
        clock.sleep(10)
        driver.says(seed, 9, 0.5, "epochs")
    assert driver.manager.next() is None
    assert driver.manager.exhausted
    driver.manager.close()
    assert driver.states == ["COMPLETE"]
    assert driver.lines[-1] == "Stopped: the device-hour budget takes no further trial"


def test_waiting_for_the_first_process_uses_no_device_hours(drive: Drive, clock: Clock) -> None:
    """On a busy cluster a sweep would spend its device hours before its first trial had a device."""
    driver = drive(max_device_hours=35 / 3600)
    for _ in range(2):
        assert driver.manager.next(hold=False)
    driver.manager.note_wait()
    assert driver.lines == []
    clock.sleep(40)
    for _ in range(2):
        driver.manager.note_wait()
    assert driver.lines == ["Waiting for processes: the cluster may be busy with something else"]
    assert (driver.events, driver.manager.live) == ([], 2)
    driver.manager.hold(0)
    clock.sleep(10)
    driver.manager.hold(0)
    assert driver.manager.usage_log.seconds()["cpus"] == driver.manager.budget.used == 10
    assert [event.split("  ")[0] for event in driver.events] == ["trial 0 started"]
    driver.says(0, 9, 0.5, "epochs")
    driver.manager.hold(0)
    assert driver.manager.usage_log.seconds()["cpus"] == 10
    assert driver.manager.next(hold=False), "10 s are used and trial 1 will need 10: another 10 fit into 35"
    assert driver.manager.next(hold=False) is None


def test_waiting_for_a_replacement_process_uses_no_device_hours(drive: Drive, clock: Clock) -> None:
    """The node of the process was lost, and the next process starts after hours."""
    driver = drive(max_device_hours=1)
    seed_run = driver.begin()
    clock.sleep(10)
    driver.says(seed_run, 1, 0.5)
    driver.manager.release(seed_run)
    clock.sleep(7200)
    driver.manager.note_wait()
    assert driver.lines == ["Waiting for processes: the cluster may be busy with something else"]
    assert not driver.manager.stopping(), "its device hours are not spent"
    driver.manager.hold(seed_run)
    clock.sleep(5)
    assert driver.manager.usage_log.seconds()["cpus"] == driver.manager.budget.used == 15
    assert driver.says(seed_run, 9, 0.4, "epochs")
    assert driver.manager.budget.device_seconds_of(seed_run) == 15
    assert [event.split("  ")[0] for event in driver.events] == ["trial 0 started", "trial 0 continues"]


def test_budget_left_by_an_early_end_is_used_for_another_trial(drive: Drive, clock: Clock) -> None:
    driver = drive(max_device_hours=30 / 3600)
    driver.begin()
    clock.sleep(10)
    driver.says(0, 9, 0.5, "epochs")
    driver.begin()
    clock.sleep(1)
    assert driver.manager.next() is None
    assert not driver.manager.exhausted, "a running trial may end early and leave room"
    driver.manager.died(1, "killed")
    assert driver.begin() == 2


@pytest.mark.parametrize("interrupted", [False, True])
def test_trial_asked_ahead_fails_on_a_spent_budget_unless_interrupted(
    interrupted: bool, drive: Drive, clock: Clock
) -> None:
    driver = drive(trials=20, sampler="tpe", max_device_hours=1.0)
    runs = [driver.begin() for _ in range(8)]
    driver.manager.ask_ahead()
    clock.sleep(430)
    driver.interrupted = interrupted
    for seed_run in runs:
        driver.says(seed_run, 9, 0.5, "epochs")
    assert driver.manager.next() is None
    assert driver.manager.exhausted
    driver.manager.close()
    assert driver.states == ["COMPLETE"] * 8 + ["RUNNING" if interrupted else "FAIL"]
    assert driver.lines[-1] == "Stopped: the device-hour budget takes no further trial"
    if not interrupted:
        assert driver.study.trials[8].user_attrs["cause"] == "the budget takes no further trial"
        assert driver.study.failed() == [], "a spent budget is not a failure"


def test_use_of_80_percent_of_a_budget_is_reported_once(drive: Drive, clock: Clock) -> None:
    driver = drive(max_device_hours=100 / 3600)
    driver.begin()
    clock.sleep(70)
    driver.says(0, 1, 0.5)
    assert driver.notes == []
    clock.sleep(15)
    driver.says(0, 2, 0.5)
    driver.says(0, 3, 0.5)
    assert driver.notes == ["budget: 80% of 0.0277778 device hours are spent"]
    assert driver.lines == ["80% of 0.0277778 device hours are spent"]
    clock.sleep(20)
    assert driver.manager.stopping()


def test_running_trial_of_a_dead_driver_fails_if_the_budget_is_spent(drive: Drive, clock: Clock) -> None:
    first = drive(max_device_hours=100 / 3600)
    first.begin()
    clock.sleep(200)
    first.manager.usage_log.close()
    first.die()
    second = drive(max_device_hours=100 / 3600)
    second.tracker.known.add("sweep/0")
    assert second.manager.next() is None
    assert second.manager.exhausted
    second.manager.close()
    assert second.states == ["FAIL"]
    assert second.tracker.ends == {"sweep/0": "KILLED"}


def test_each_cause_is_printed_once(drive: Drive) -> None:
    driver = drive(trials=9, max_failures=9)
    for error in (Diverged(2, "train/loss", math.nan), OSError("disk"), Diverged(7, "train/loss", math.nan)):
        driver.manager.result(driver.begin(), reports.failure_payload(error))
    params = [f"lr={show(trial.params['lr'])}" for trial in driver.study.trials]
    assert driver.lines == [
        f"trial 0 failed   train/loss is nan at epoch 2  {params[0]}",
        f"trial 1 failed   OSError: disk  {params[1]}",
        f"trial 2 failed   same cause as trial 0  {params[2]}",
    ]
    assert driver.tracker.tags["sweep/2"]["orchestrator.cause"] == "train/loss is nan at epoch 7"
    assert driver.manager.current_status().trouble == "trial 2: train/loss is nan at epoch 7"


@pytest.mark.parametrize("until_gain", [None, 4])
def test_until_gain_without_noise_is_reported_once_as_ineffective(until_gain: int | None, drive: Drive) -> None:
    driver = drive(trials=14, until_gain=until_gain)
    for number in range(14):
        driver.says(driver.begin(), 9, 0.5 + number, "epochs")
    said = [line for line in driver.lines if not line.startswith("trial ")]
    sentence = "--until-gain cannot end the search, because the noise is unknown: "
    why = "validation has no values of error by unit, and no trial has several seeds"
    assert said == ([sentence + why] if until_gain else [])


# PBT


def test_member_of_a_population_is_one_run_with_parameters_by_epoch(drive: Drive) -> None:
    driver = drive(scheduler="pbt", trials=4)
    for _ in range(4):
        driver.begin()
    for seed_run in range(4):
        _save(driver, seed_run)
        assert driver.says(seed_run, 1, float(seed_run)) is True
    assert driver.tracker.ends == {}, "a paused member has not ended"
    configs = [driver.manager.next() for _ in range(4)]
    assert [config["number"] for config in configs if config] == [0, 1, 2, 3]
    assert all(config["save_at_rungs"] and config["keep"] == 4 for config in configs if config)
    assert len(driver.tracker.open) == 4
    for seed_run in range(4):
        curve = [(epoch, m["pbt/lr"]) for epoch, m in driver.tracker.logged[f"sweep/{seed_run}"] if "pbt/lr" in m]
        assert [epoch for epoch, _ in curve] == [0, 1]
        assert (curve[0][1] == curve[1][1]) is (seed_run != 3)
        config = configs[seed_run]
        assert config is not None
        assert curve[1][1] == config["spec"]["params"]["lr"]
        assert driver.tracker.params[f"sweep/{seed_run}"]["lr"] == curve[0][1]
        assert set(driver.tracker.logged[f"sweep/{seed_run}"][0][1]) == {"pbt/lr"}
    tags = {n: driver.tracker.tags[f"sweep/{n}"].get("orchestrator.lineage") for n in range(4)}
    assert configs[3] is not None
    lr = show(configs[3]["spec"]["params"]["lr"])
    assert {n: tag for n, tag in tags.items() if tag} == {3: tags[3]}
    assert tags[3].startswith("after epoch 1 from trial 0: ")
    assert f"lr={lr}" in tags[3].split()


def test_member_keeps_its_own_rows_when_it_continues_from_another(drive: Drive) -> None:
    """After the takeover, the member reports an epoch again, with the donor's rows."""
    driver = drive(scheduler="pbt", trials=4)
    for _ in range(4):
        driver.begin()
    for seed_run in range(4):
        _save(driver, seed_run)
        driver.says(seed_run, 1, float(seed_run))
    for _ in range(4):
        driver.begin()
    assert driver.says(3, 1, 0.0) is False
    assert driver.says(3, 2, 0.5) is True
    assert curves.read(driver.folder.path, "validation/error")[3, 0] == [(1, 3.0), (2, 0.5)]
    assert driver.trained[-2:] == [0, 1], "only the new epoch counts"


def _save(driver: Driver, seed_run: int) -> None:
    from orchestrator.engine import checkpoint

    folder = driver.study.home(seed_run)
    checkpoint.write(folder / checkpoint.name(1), checkpoint.Checkpoint({"workload": "toy"}, 1, {"made_by": seed_run}))


# Racing


@pytest.mark.parametrize("units", [None, {"id": [0], "error": [0.5]}], ids=["none", "one"])
def test_racing_without_comparable_units_is_reported_once(units: Any, drive: Drive) -> None:
    driver = drive(scheduler="racing", decide_at=(2, 4))
    for _ in range(2):
        number = driver.begin()
        for epoch in (2, 4):
            driver.says(number, epoch, 0.5, units=units and unit_values.encode(units, 0.5))
    assert driver.states == ["RUNNING", "RUNNING"]
    assert driver.lines == ["Racing stops no trial that has no values of error by unit to be compared"]


def test_a_value_that_is_not_a_number_at_a_rung_fails_its_trial_alone(drive: Drive) -> None:
    driver = drive(scheduler="racing", decide_at=(2, 4))
    units = {"id": range(4), "error": np.arange(4) / 10}
    first, second = driver.begin(), driver.begin()
    for number in (first, second):
        driver.says(number, 2, 0.15, units=unit_values.encode(units, 0.15))
    driver.manager.result(first, reports.failure_payload(Diverged(4, "validation/error", math.nan)))
    assert not driver.says(second, 4, 0.15, units=unit_values.encode(units, 0.15))
    assert driver.states == ["FAIL", "RUNNING"]
    assert driver.study.cause(first) == "validation/error is nan at epoch 4"
