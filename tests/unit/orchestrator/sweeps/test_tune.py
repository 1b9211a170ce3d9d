"""Callbacks and search of Ray Tune: the trial's actor, and processes that are replaced or lost for good."""

from __future__ import annotations

import re
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray import tune

from orchestrator.cluster.fair_share import WholeCluster
from orchestrator.cluster.lost_devices import LostDevices
from orchestrator.cluster.preemption import RAY_DIED, Preempted
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.errors import RunFailed
from orchestrator.runs import heartbeat, micro_batches, reports, worker
from orchestrator.runs.heartbeat import GIVEN_UP, PROCESS, TrialMonitor
from orchestrator.runs.reports import TrialTimeout
from orchestrator.sweeps import pack
from orchestrator.sweeps.trial import TrialActor
from orchestrator.sweeps.tune import (
    _ProcessCallback,
    _ReportStopper,
    _SharedSearch,
    _StudySearcher,
    _SweepState,
    run_trials,
    run_winner,
)
from tests.support import searching
from tests.support.clusters import KILLED, TOLD
from tests.support.toy import CountedToy, Toy
from workloads import catalog

ALONE: Any = {"devices": LostDevices(Resources(), {}, print), "share": WholeCluster()}


class Book:
    """Replaces the manager: hands out one trial."""

    exhausted = True
    live = 0

    def __init__(self, home: Path) -> None:
        self.left = [{"number": 7, "folder": str(home)}]
        self.lost: list[tuple[int, str]] = []
        self.held: list[int] = []

    def next(self, *, hold: bool) -> dict[str, Any] | None:
        assert not hold, "Tune asks for trials before it has a process"
        return self.left.pop() if self.left else None

    def hold(self, seed_run: int) -> None:
        self.held.append(seed_run)

    def release(self, seed_run: int) -> None:
        self.held[:] = [other for other in self.held if other != seed_run]

    def result(self, seed_run: int, payload: dict[str, Any]) -> bool:
        return False

    def stopping(self) -> bool:
        return False

    def died(self, seed_run: int, cause: str) -> None:
        self.lost.append((seed_run, cause))


@pytest.fixture
def state(tmp_path: Path) -> _SweepState:
    return _SweepState(Book(tmp_path), TrialMonitor(10), slots=1, slot_limit=lambda wanted: wanted)  # type: ignore[arg-type]


def test_restarts_of_a_trials_process_are_counted_and_its_devices_freed(state: _SweepState, tmp_path: Path) -> None:
    search, restarts = _StudySearcher(state), _ProcessCallback(state)
    assert search.suggest("a") == {"number": 7, "folder": str(tmp_path)}
    assert search.suggest("b") is None, "its process may die before its first report"
    assert not _ReportStopper(state)("a", {"epoch": 1})
    assert search.suggest("b") == "FINISHED"
    tunes = SimpleNamespace(trial_id="a", num_failures=0, error_file=tmp_path / "error.txt")
    restarts.on_trial_start(1, [], tunes)
    for times in (1, 2):
        (tmp_path / PROCESS).write_text("{}")
        state.monitor.heard(7)
        tunes.num_failures = times
        restarts.on_trial_recover(1, [], tunes)
        assert not (tmp_path / PROCESS).exists()
        assert state.manager.held == [], "the trial may wait for long"  # type: ignore[attr-defined]
        restarts.on_trial_start(1, [], tunes)
    tunes.num_failures = 3
    (tmp_path / "error.txt").write_text("Failure # 3 (occurred at noon)\nThe actor died unexpectedly.\n")
    search.on_trial_complete("a", error=True)
    assert state.manager.lost == [(7, "its process died 3 times")]  # type: ignore[attr-defined]


def test_devices_are_held_only_after_the_process_has_started(state: _SweepState) -> None:
    held = state.manager.held  # type: ignore[attr-defined]
    _StudySearcher(state).suggest("a")
    assert held == []
    _ProcessCallback(state).on_trial_start(1, [], SimpleNamespace(trial_id="a"))
    assert held == [7]


def test_devices_of_a_group_are_held_after_it_reports_them(state: _SweepState) -> None:
    """The Trainable has a process before its workers have any. The time of their start does not count as silence."""
    state.grouped = True
    held = state.manager.held  # type: ignore[attr-defined]
    _StudySearcher(state).suggest("a")
    _ProcessCallback(state).on_trial_start(1, [], SimpleNamespace(trial_id="a"))
    assert held == []
    assert not _ReportStopper(state)("a", {"epoch": 0, reports.HELD: True})
    assert held == [7]
    assert state.starting == {7}


def test_a_process_that_dies_while_it_is_prepared_is_replaced_three_times(state: _SweepState, tmp_path: Path) -> None:
    search = _StudySearcher(state)
    config = search.suggest("a")
    for before, after in ("ab", "bc", "cd"):
        search.on_trial_complete(before, error=True)
        assert search.suggest(after) == config
    assert not state.manager.lost  # type: ignore[attr-defined]
    search.on_trial_complete("d", error=True)
    assert search.suggest("e") == "FINISHED"
    assert state.manager.lost == [(7, "its process did not start")]  # type: ignore[attr-defined]


def test_reported_device_loss_of_a_running_trial_is_counted(state: _SweepState) -> None:
    losses: list[tuple[str, int]] = []
    state.lost = lambda *loss: losses.append(loss)
    _StudySearcher(state).suggest("a")
    stopper = _ReportStopper(state)
    for more in ({}, {reports.HELD: True}, {reports.LOST: "the accelerator was lost (GPU 0 of node ab)"}, {}):
        stopper("a", {"epoch": 1, **more})
    assert losses == [("the accelerator was lost (GPU 0 of node ab)", 7)]
    assert state.manager.held == [], "the trial waits for other devices"  # type: ignore[attr-defined]


def test_trial_killed_for_its_silence_has_the_timeout_as_its_cause(state: _SweepState, tmp_path: Path) -> None:
    search = _StudySearcher(state)
    search.suggest("a")
    (tmp_path / GIVEN_UP).write_text("no report for 10 s")
    search.on_trial_complete("a", error=True)
    search.on_trial_complete("a")
    assert state.manager.lost == [(7, "no report for 10 s")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("live", "may", "begins", "given_back"),
    [
        (4, 4, False, False),  # a sweep alone keeps its processes between trials
        (3, 4, True, False),
        (4, 2, False, True),  # above its share, a sweep releases unused processes
        (2, 2, False, True),
        (1, 2, True, False),
    ],
)
def test_sweep_begins_trials_and_releases_processes_by_its_share(
    tmp_path: Path, live: int, may: int, begins: bool, given_back: bool
) -> None:
    book = Book(tmp_path)
    book.live = live
    state = _SweepState(book, TrialMonitor(10), slots=4, slot_limit=lambda wanted: min(wanted, may))  # type: ignore[arg-type]
    search = _SharedSearch(state)
    search.add_configurations(tune.Experiment("sweep", lambda config: None, num_samples=99))
    assert search.is_finished() is given_back
    book.exhausted = False
    assert (search.searcher.suggest("a") is not None) is begins


def shared(state: _SweepState) -> _SharedSearch:
    """A search from which Tune requests trials."""
    search = _SharedSearch(state)
    search.add_configurations(tune.Experiment("sweep", lambda config: None, num_samples=99))
    return search


def test_reduced_share_does_not_end_a_search_with_an_unstarted_trial(tmp_path: Path) -> None:
    """The manager counts the trial as running, but Tune does not have it."""
    book = Book(tmp_path)
    state = _SweepState(book, TrialMonitor(10), slots=2, slot_limit=lambda wanted: 1)  # type: ignore[arg-type]
    search = shared(state)
    config = search.searcher.suggest("a")
    book.live, book.exhausted = 1, False
    assert search.is_finished(), "the process of an ended trial is released"
    search.searcher.on_trial_complete("a", error=True)
    assert not search.is_finished()
    assert search.searcher.suggest("b") == config
    assert search.is_finished()


def test_a_stopped_sweep_waits_until_its_running_trials_have_saved(tmp_path: Path) -> None:
    """Otherwise Tune would kill them. A sweep with a spent budget, or on a node whose Ray has died, does not wait."""
    book: Any = Book(tmp_path)
    book.stopping = lambda: True
    state = _SweepState(book, TrialMonitor(10), slots=1, slot_limit=lambda wanted: wanted)
    _StudySearcher(state).suggest("a")
    stopper, trial = _ReportStopper(state), SimpleNamespace(trial_id="a", status="RUNNING")
    _ProcessCallback(state).on_trial_start(0, [], trial)
    book.ends_epochs = lambda: True
    assert not stopper("a", {"rows": []}), "the trial may be in the middle of the next epoch"
    assert not stopper.stop_all()
    assert stopper("a", {"rows": [], reports.SAVED: True})
    trial.status = "TERMINATED"
    assert stopper.stop_all()
    trial.status = "RUNNING"
    book.ends_epochs = lambda: False
    assert stopper.stop_all()


def test_trial_added_while_the_last_ones_run_is_started(tmp_path: Path) -> None:
    book = Book(tmp_path)
    state = _SweepState(book, TrialMonitor(10), slots=2, slot_limit=lambda wanted: wanted)  # type: ignore[arg-type]
    search, stopper = shared(state), _ReportStopper(state)
    search.searcher.suggest("a")
    book.live = 1
    stopper("a", {})
    assert search.next_trial() is None
    assert search.is_finished(), "processes without waiting trials are released"
    book.left.append({"number": 8, "folder": str(tmp_path)})
    book.exhausted = False
    assert not stopper.stop_all()
    assert not search.is_finished()
    assert search.searcher.suggest("b") == {"number": 8, "folder": str(tmp_path)}
    book.live, book.exhausted = 0, True
    for trial in "ab":
        stopper(trial, {})
        search.on_trial_complete(trial)
    assert search.next_trial() is None
    assert search.is_finished()


def test_a_trial_that_waits_at_a_rung_while_the_last_ones_run_goes_on(tmp_path: Path) -> None:
    study = searching.study(tmp_path / "s", trials=2, scheduler="median", ordered=True, decide_at=(9, 18))
    first, second = searching.begin(study), searching.begin(study)
    manager: Any = SimpleNamespace(live=2, stopping=lambda: False, next=study.next, exhausted=study.exhausted())
    search = shared(state := _SweepState(manager, TrialMonitor(None), slots=2, slot_limit=lambda wanted: wanted))
    assert search.next_trial() is None
    assert state.finished
    assert searching.at_rung(study, second.seed_run, 9, 0.5) == "paused"
    manager.live, manager.exhausted = 1, study.exhausted()
    _ReportStopper(state).stop_all()
    assert not search.is_finished()
    searching.at_rung(study, first.seed_run, 9, 0.5)
    again = manager.next()
    assert again is not None
    assert again.seed_run == second.seed_run


@pytest.mark.parametrize(
    ("live", "exhausted", "stopping", "raises"),
    [(0, True, False, False), (1, True, True, False), (1, True, False, True), (0, False, False, True)],
)
def test_run_failed_is_raised_if_tune_ends_before_the_sweep(
    live: int, exhausted: bool, stopping: bool, raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "Tuner", lambda *args, **options: SimpleNamespace(fit=lambda: None))
    manager: Any = SimpleNamespace(live=live, exhausted=exhausted, stopping=lambda: stopping)
    folder: Any = SimpleNamespace(path=tmp_path / "s", id="s", log=tmp_path / "log")
    text = rf"ended before the sweep \(running trials: {live}\).*sweep --resume s"
    with pytest.raises(RunFailed, match=text) if raises else nullcontext():
        run_trials(searching.sweep(), folder, manager, 1, lambda wanted: wanted, print)


def test_tune_clears_no_output_of_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own reporter for notebooks does, where none is given."""
    reporters: list[Any] = []

    def tuner(*args: Any, run_config: tune.RunConfig, **options: Any) -> Any:
        reporters.append(run_config.progress_reporter)
        return SimpleNamespace(fit=lambda: None)

    monkeypatch.setattr(tune, "Tuner", tuner)
    manager: Any = SimpleNamespace(live=0, exhausted=True, stopping=lambda: False)
    folder: Any = SimpleNamespace(path=tmp_path / "s", id="s", log=tmp_path / "log")
    run_trials(searching.sweep(), folder, manager, 1, lambda wanted: wanted, print)
    assert [type(reporter) for reporter in reporters] == [tune.CLIReporter]


def test_an_interrupt_leaves_no_processes_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the connection to Ray stays, and so does the traceback. Tune cleans up only after an Exception."""

    class Processes:
        """Processes that end with this object, which refers to itself as Tune's object does."""

        def __init__(self) -> None:
            self.step = self.fit

        def fit(self) -> None:
            raise KeyboardInterrupt

    begun: list[weakref.ref[Processes]] = []
    removed: list[Any] = []

    def tuner(*args: Any, **options: Any) -> Processes:
        processes = Processes()
        begun.append(weakref.ref(processes))
        return processes

    monkeypatch.setattr(tune, "Tuner", tuner)
    monkeypatch.setattr("orchestrator.sweeps.tune.remove_groups", lambda *homes: removed.append(homes))
    spec = searching.sweep()
    spec = spec.model_copy(update={"resources": spec.resources.fixed(2)})
    folder: Any = SimpleNamespace(path=tmp_path / "s", id="s", log=tmp_path / "log")
    with pytest.raises(KeyboardInterrupt) as kept:
        run_trials(spec, folder, SimpleNamespace(), 1, lambda wanted: wanted, print)  # type: ignore[arg-type]
    assert kept.tb is not None
    assert [processes() for processes in begun] == [None]
    assert removed, "groups of these processes are left"


def test_a_sweep_without_a_share_goes_on_when_it_has_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune ends with its last process, which was released for the winner of another sweep."""
    shares = iter([0, 0, 0, 1])
    manager: Any = SimpleNamespace(live=0, exhausted=False, stopping=lambda: False)
    begun: list[Any] = []

    def tuner(*args: Any, tune_config: Any, **options: Any) -> Any:
        def fit() -> None:
            begun.append(tune_config.search_alg)
            if len(begun) == 1:
                assert tune_config.search_alg.is_finished()
            else:
                manager.exhausted = True

        return SimpleNamespace(fit=fit)

    monkeypatch.setattr(tune, "Tuner", tuner)
    monkeypatch.setattr("orchestrator.sweeps.tune.YIELD_SECONDS", 0)
    folder: Any = SimpleNamespace(path=tmp_path / "s", id="s", log=tmp_path / "log")
    run_trials(searching.sweep(), folder, manager, 1, lambda wanted: next(shares), print)
    assert len(begun) == 2
    assert next(shares, None) is None


def test_sweep_at_its_end_requests_only_slots_of_running_trials(tmp_path: Path) -> None:
    book, asked = Book(tmp_path), list[int]()
    state = _SweepState(book, TrialMonitor(10), slots=4, slot_limit=lambda wanted: asked.append(wanted) or wanted)  # type: ignore
    search = _StudySearcher(state)
    search.suggest("a")
    book.live = 1
    _ReportStopper(state)("a", {})
    assert search.suggest("b") is None, "Tune asks again: a trial may be added while the last one runs"
    state.may()
    assert asked == [4, 4, 1]


def test_a_winner_whose_node_is_dead_is_left_to_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*args: Any) -> Iterator[Any]:
        raise ray.exceptions.LocalRayletDiedError

    said: list[str] = []
    session: Any = SimpleNamespace(
        folder=SimpleNamespace(stop_file=None),
        settings=SimpleNamespace(data=tmp_path),
        interrupts=SimpleNamespace(stop=lambda line, saves: said.append(line)),
        look=lambda spec: None,
    )
    options = SimpleNamespace(options=lambda **kinds: SimpleNamespace(remote=lambda *args: None))
    monkeypatch.setattr(ray, "remote", lambda task: options)
    monkeypatch.setattr("orchestrator.sweeps.tune._arriving", dead)
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(epochs=2), seed=0)
    assert not run_winner(spec, tmp_path / "winner", session, print, resume=None, selected=None, **ALONE)
    assert said == [RAY_DIED]


def test_winners_task_is_cancelled_when_the_driver_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the connection to Ray stays, and with it everything that was started on it."""

    def stop(*args: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    cancelled: list[Any] = []
    session: Any = SimpleNamespace(
        folder=SimpleNamespace(stop_file=None), settings=SimpleNamespace(data=tmp_path), look=lambda spec: None
    )
    options = SimpleNamespace(options=lambda **kinds: SimpleNamespace(remote=lambda *args: "stream"))
    monkeypatch.setattr(ray, "remote", lambda task: options)
    monkeypatch.setattr(ray, "cancel", lambda stream, force: cancelled.append((stream, force)))
    monkeypatch.setattr("orchestrator.sweeps.tune._arriving", stop)
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(epochs=2), seed=0)
    with pytest.raises(KeyboardInterrupt):
        run_winner(spec, tmp_path / "winner", session, print, resume=None, selected=None, **ALONE)
    assert cancelled == [("stream", True)]


def test_a_winner_that_loses_its_device_goes_on_on_another(
    toy_workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task runs as in its process. The loss is counted, so that a device that is lost twice is excluded."""
    epochs = iter(range(1, 100))

    def lost(toy: Toy, epoch: int) -> Any:
        if next(epochs) in (2, 3):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return trained(toy, epoch)

    def arriving(reports: Iterator[Any], *parts: Any) -> Iterator[Any]:
        try:
            yield from reports
        except Exception as error:
            raise ray.exceptions.RayTaskError("_winner_task", traceback.format_exc(), error) from error

    trained = Toy.train_epoch
    monkeypatch.setattr(Toy, "train_epoch", lost)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "ab"))
    monkeypatch.setattr(ray, "remote", lambda task: SimpleNamespace(options=lambda **k: SimpleNamespace(remote=task)))
    monkeypatch.setattr("orchestrator.sweeps.tune._arriving", arriving)
    losses: list[str] = []
    session: Any = SimpleNamespace(
        folder=SimpleNamespace(stop_file=tmp_path / "stop", id="s", log="log"),
        settings=SimpleNamespace(data=tmp_path),
        interrupts=SimpleNamespace(stop_requested=lambda: False),
        look=lambda spec: None,
    )
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(epochs=2, refit="only"), seed=0)
    devices: Any = SimpleNamespace(report=losses.append, poll=lambda: None)
    said: list[Any] = []
    share: Any = SimpleNamespace(limit=lambda wanted, waits=False: said.append((wanted, waits)))

    @contextmanager
    def holding(resources: Resources) -> Iterator[None]:
        said.append(resources.workers)
        yield
        said.append("released")

    assert run_winner(
        spec, tmp_path / "winner", session, lambda rows: None, resume=None, selected=None, devices=devices,
        share=share, holding=holding,
    )  # fmt: skip
    assert said[:3] == [(1, True), (1, False), 1], "it waits for its share, and then holds it"
    assert said[-1] == "released"
    assert losses == ["the accelerator was lost: CUDA error: an illegal memory access was encountered"] * 2
    assert session.task_nodes == {"ab"}, "no actor of the job shows this node to the system metrics"


# The actor


@pytest.fixture
def actor(toy_workload: str, monkeypatch: pytest.MonkeyPatch) -> TrialActor:
    """An actor that Tune has not set up yet, without a monitor."""
    monkeypatch.setattr(heartbeat, "announce", lambda folder: None)
    return TrialActor.__new__(TrialActor)


def config(home: Path, accumulate: Any = 1, **params: Any) -> dict[str, Any]:
    plan = Plan(epochs=8, refit=True, decide_at=(3,), accumulate=accumulate)
    spec = ExperimentSpec(workload="toy", params={"batch_size": 8} | params, plan=plan)
    home.mkdir()
    return {
        "number": 0, "spec": spec.model_dump(mode="json"), "folder": str(home), "data": str(home), "keep": 2,
        "save_at_rungs": False, "measure": [], "stop_file": str(home / "stop"),
    }  # fmt: skip


def test_diverged_actor_reports_all_rows_and_saves_no_checkpoint(actor: TrialActor, tmp_path: Path) -> None:
    actor.setup(config(tmp_path / "0", nan_at=6))
    first, last = actor.step(), actor.step()
    assert [epoch for epoch, _, _ in first["rows"]] == [1, 2, 3]
    assert [epoch for epoch, _, _ in last["rows"]] == [4, 5]
    assert (last["error"], last["done"]) == ("train/loss is nan at epoch 6", True)
    actor.reset_config(config(tmp_path / "1"))
    assert not list((tmp_path / "0").glob("checkpoint-*")), "the state is that of no reported epoch"
    assert [actor.step()["ended"] for _ in range(2)] == [None, "epochs"]
    actor.cleanup()


def test_epoch_0_is_reported_together_with_the_first_epochs(
    actor: TrialActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "pretrained", True, raising=False)
    actor.setup(config(tmp_path / "0", start=1.0))
    first = actor.step()
    assert [epoch for epoch, _, _ in first["rows"]] == [0, 1, 2, 3]
    assert (first["epoch"], first["best_epoch"], first["best_value"], first["ended"]) == (3, 0, 0.0, None)
    last = actor.step()
    assert (last["epoch"], last["best_epoch"], last["ended"]) == (8, 0, "epochs")
    actor.cleanup()


def test_stopped_actor_saves_a_checkpoint_of_its_last_report(actor: TrialActor, tmp_path: Path) -> None:
    actor.setup(config(tmp_path / "0"))
    assert actor.step()["epoch"] == 3
    actor.cleanup()
    (saved,) = (tmp_path / "0").glob("checkpoint-*")
    assert saved.name.endswith("3")


def test_an_actor_ends_its_epoch_when_the_sweep_is_stopped(
    actor: TrialActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs 1 to 3 are one report; the stop file appears in the second one."""
    train = Toy.train_epoch

    def stopping(toy: Toy, epoch: int) -> Any:
        if epoch == 2:
            (tmp_path / "0" / "stop").touch()
        return train(toy, epoch)

    monkeypatch.setattr(Toy, "train_epoch", stopping)
    monkeypatch.setattr(worker, "STOP_SECONDS", 0.0)
    actor.setup(config(tmp_path / "0"))
    told, saved = actor.step(), actor.step()
    assert (told["epoch"], told["ended"], reports.SAVED in told) == (2, None, False)
    assert (saved["epoch"], saved["rows"], saved[reports.SAVED]) == (2, [], True)
    assert [file.name[-1] for file in (tmp_path / "0").glob("checkpoint-*")] == ["2"]
    actor.cleanup()


def test_an_actor_that_loses_its_accelerator_saves_nothing_of_the_epoch(
    actor: TrialActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(toy: Toy, epoch: int) -> Any:
        if epoch == 5:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return trained(toy, epoch)

    trained = Toy.train_epoch
    monkeypatch.setattr(Toy, "train_epoch", lost)
    actor.setup(config(tmp_path / "0"))
    assert actor.step()["epoch"] == 3
    with pytest.raises(reports.DeviceLost):
        actor.step()
    actor.cleanup()
    assert not list((tmp_path / "0").glob("checkpoint-*"))


def test_preempted_trial_saves_and_resumes_in_another_process(
    actor: TrialActor, toy_workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process continues from there, and reports the last rows again for a driver that missed them."""
    asked = iter(range(100))
    monkeypatch.setattr(pack, "this_node", lambda: lambda: next(asked) > 4)
    actor.setup(config(tmp_path / "0"))
    assert actor.step()["epoch"] == 3
    with pytest.raises(Preempted):
        actor.step()
    actor.cleanup()
    (saved,) = (tmp_path / "0").glob("checkpoint-*")
    assert saved.name.endswith("5")
    monkeypatch.setattr(pack, "this_node", lambda: lambda: False)
    other = TrialActor.__new__(TrialActor)
    (tmp_path / "0").rename(tmp_path / "moved")
    other.setup(config(tmp_path / "0") | {"folder": str(tmp_path / "moved")})
    last = other.step()
    assert [epoch for epoch, _, _ in last["rows"]] == list(range(1, 9))
    assert last["ended"] == "epochs"
    other.cleanup()


def test_trial_is_freed_before_the_next_one_is_built(
    actor: TrialActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the trial itself is rebuilt, with smaller micro-batches."""
    entry = catalog.Entry("tests.support.toy:Params", "tests.support.toy:CountedToy", "Counts the others.")
    monkeypatch.setitem(catalog.BUILT_IN, "toy", entry)
    fits = config(tmp_path / "1", fits=4, batch_size=8)
    fits["spec"]["plan"]["accumulate"] = "auto"
    with CountedToy.without_collector() as counts:
        actor.setup(config(tmp_path / "0"))
        for home in (fits, config(tmp_path / "2")):
            while not actor.step()["done"]:
                pass
            actor.reset_config(home)
        actor.step()
        assert counts == [0] * 4
    actor.cleanup()


@pytest.mark.parametrize("accumulate", [1, "auto"])
def test_trial_killed_for_memory_is_not_retried_with_the_same_settings(
    accumulate: Any, state: _SweepState, toy_workload: str, tmp_path: Path
) -> None:
    begun = config(tmp_path / "0", accumulate=accumulate, hang_at=1)
    state.configs[7], state.seed_runs["a"] = begun, 7
    (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at noon)\n{KILLED}\n")
    killed = SimpleNamespace(trial_id="a", num_failures=1, error_file=tmp_path / "error.txt")
    _ProcessCallback(state).on_trial_recover(1, [], killed)
    if accumulate == "auto":
        assert heartbeat.given_up(tmp_path / "0") is None
        assert micro_batches.chosen(ExperimentSpec.model_validate(begun["spec"]), tmp_path / "0") == 2
        return
    again = TrialActor.__new__(TrialActor)
    again.setup(begun)
    assert again.step()["error"] == TOLD
    again.cleanup()


def test_winner_killed_for_memory_is_not_retried_with_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any) -> Iterator[Any]:
        raise KILLED

    started: list[Any] = []
    session: Any = SimpleNamespace(
        folder=SimpleNamespace(stop_file=None, id="s", log=tmp_path / "log"),
        settings=SimpleNamespace(data=tmp_path),
        look=lambda spec: None,
    )
    options = SimpleNamespace(options=lambda **kinds: SimpleNamespace(remote=lambda *args: started.append(args)))
    monkeypatch.setattr(ray, "remote", lambda task: options)
    monkeypatch.setattr("orchestrator.sweeps.tune._arriving", killed)
    spec = ExperimentSpec(workload="toy", params={"batch_size": 4}, plan=Plan(epochs=2), seed=0)
    for accumulate, starts in ((1, 1), ("auto", 3)):  # in 1, 2 and 4 micro-batches
        started.clear()
        tried = spec.model_copy(update={"plan": Plan(epochs=2, accumulate=accumulate)})
        with pytest.raises(RunFailed, match=re.escape(TOLD)):
            run_winner(tried, tmp_path / "winner", session, print, resume=None, selected=None, **ALONE)
        assert len(started) == starts


def test_a_trial_that_was_given_up_is_not_begun_again(
    actor: TrialActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "announce", lambda folder: TrialTimeout("no report for 10 s; it hung at File x"))
    actor.setup(config(tmp_path / "0", hang_at=1))
    assert actor.step()["error"] == "no report for 10 s; it hung at File x"
    actor.cleanup()
