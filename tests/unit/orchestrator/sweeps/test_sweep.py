"""Whole sweeps in this process: trials, winner, and the changes that a resume allows or refuses."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from orchestrator.cluster.interrupts import Interrupts
from orchestrator.config.spec import Search, SweepSpec
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, PARTIAL, USAGE, Interrupted, RunFailed, UserError
from orchestrator.runs import driver, worker
from orchestrator.runs.session import Result
from orchestrator.search import spaces
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import request
from orchestrator.sweeps import sweep as sweeps
from orchestrator.sweeps.sweep import ResumeOptions
from orchestrator.sweeps.trial_manager import TrialManager
from tests.support import toy
from tests.support.refusals import refused
from tests.support.toy import Toy
from workloads.contract import Evaluation, Objective

pytestmark = pytest.mark.usefixtures("toy_workload", "no_page")

SPACES = """
def space(trial):
    return {"lr": trial.suggest_float("lr", 0.01, 0.2)}

def steps(trial):
    momentum = trial.suggest_categorical("momentum", [0.0, 0.5])
    return {"momentum": momentum, "lr": trial.suggest_float("lr", 0.1, 0.3, step=0.1) if momentum else 0.05}

def mixed(trial):
    return {"momentum": trial.suggest_categorical("momentum", [0.0, 0.5]), "lr": trial.suggest_float("lr", 0.1, 0.3)}

def broken(trial):
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "nan_at": 2 if trial.number in BROKEN else None}

BROKEN = {1, 2}

def other_names(trial):
    return {"lr": 10 ** trial.suggest_float("log_lr", -2, -1)}
"""
Sweep = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SPACES)
    return tmp_path / "mine.py"


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def console(out: io.StringIO) -> Console:
    """A console that writes to ``out``."""
    found = Console()
    found._out = out
    return found


@pytest.fixture
def sweep(settings: Settings, file: Path, out: io.StringIO) -> Sweep:
    """Runs a sweep to its end: ``space`` of the file; settings of the search, parameters and plan by their names."""

    def run(space: str = "space", name: str | None = None, keep: str = "winner", seed: int = 0, **asked: Any) -> Result:
        search = {key: asked.pop(key) for key in list(asked) if key in Search.model_fields}
        spec = request.sweep(
            "toy", settings, overrides={"epochs": 4} | asked, seed=seed, local=True,
            search={"space": f"{file}:{space}", "scheduler": "none"} | search,
        )  # fmt: skip
        return sweeps.sweep(spec, settings, driver.Options(local=True, name=name, keep=keep), console(out))

    return run


@pytest.fixture
def resume(settings: Settings, out: io.StringIO) -> Sweep:
    def go_on(name: str, **more: Any) -> Result:
        return sweeps.resume(
            run_lookup.find(settings.storage, name, "sweep"), settings, console(out), ResumeOptions(**more)
        )

    return go_on


class Killed(BaseException):
    """The process is killed."""


@contextmanager
def killed_at(n: int, *, told: bool) -> Iterator[None]:
    """Kill the process at its ``n``-th report, before or after the manager has recorded it, without any clean-up."""
    left, result = [n], TrialManager.result

    def counted(manager: TrialManager, unit: int, payload: Any) -> bool:
        left[0] -= 1
        if left[0] == 0 and not told:
            raise Killed
        stop = result(manager, unit, payload)
        if left[0] == 0:
            raise Killed
        return stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialManager, "result", counted)
        patch.setattr(TrialManager, "close", lambda manager: None)
        with pytest.raises(Killed):
            yield


@contextmanager
def interrupted_at(n: int) -> Iterator[None]:
    """Ctrl-C after ``n`` reports."""
    left, result = [n], TrialManager.result

    def counted(manager: TrialManager, unit: int, payload: Any) -> bool:
        left[0] -= 1
        return result(manager, unit, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialManager, "result", counted)
        patch.setattr(Interrupts, "stop_requested", lambda interrupts: left[0] <= 0)
        with pytest.raises(Interrupted):
            yield


def rows(result: Result) -> list[dict[str, Any]]:
    """The table of trials, without the values that differ between equal sweeps."""
    found: list[dict[str, Any]] = json.loads((result.folder / "trials.json").read_text())
    return [{key: value for key, value in row.items() if key != "train_seconds"} for row in found]


def values(result: Result) -> list[float]:
    return [row["value"] for row in rows(result)]


# Grids

POINTS = [{"momentum": 0.0}, *({"momentum": 0.5, "lr": pytest.approx(lr)} for lr in (0.1, 0.2, 0.3))]


def points(result: Result) -> list[dict[str, Any]]:
    return [{k.removeprefix("params."): v for k, v in row.items() if k.startswith("params.")} for row in rows(result)]


@pytest.mark.parametrize(("asked", "expected"), [({}, POINTS), ({"trials": 3}, POINTS[:3]), ({"trials": 99}, POINTS)])
def test_a_grid_runs_exactly_its_points(asked: dict[str, Any], expected: list[dict[str, Any]], sweep: Sweep) -> None:
    result = sweep("steps", sampler="grid", **asked)
    assert points(result) == expected
    assert result.exit_code == DONE


def test_a_space_may_suggest_by_other_names_than_those_of_the_parameters(sweep: Sweep) -> None:
    result = sweep("other_names", trials=3)
    assert result.extra["best_params"].keys() == {"lr"}
    assert result.status == "finished"


def test_a_grid_goes_on_with_its_next_points_and_no_further(sweep: Sweep, resume: Sweep) -> None:
    sweep("steps", sampler="grid", trials=2, name="g")
    assert points(resume("g", more_trials=1)) == POINTS[:3]
    refused(lambda: resume("g", more_trials=2), "The grid has no more points: got 5 trials; allowed: at most 4")
    assert points(resume("g", more_trials=1)) == POINTS


# Populations

POPULATION: dict[str, Any] = {"scheduler": "pbt", "trials": 5, "epochs": 20}


@pytest.mark.slow
def test_a_population_is_the_same_every_time(sweep: Sweep) -> None:
    """The winner of a population is tested without a refit."""
    first = sweep(**POPULATION, name="a")
    second = sweep(**POPULATION, name="b")
    assert rows(first) == rows(second)
    assert first.metrics == second.metrics
    assert rows(sweep(**POPULATION, seed=1)) != rows(first)
    best = min(rows(first), key=lambda row: row["value"])
    assert first.metrics["validation/error"] == best["value"]
    assert first.extra["epochs"] == best["best_epoch"], "the weights of its best epoch, no refit"


@pytest.mark.slow
def test_population_resumes_with_equal_results_after_a_kill(sweep: Sweep, resume: Sweep) -> None:
    whole = sweep(**POPULATION, keep="all")
    for n, told in ((1, True), (9, False), (12, True), (12, False), (40, False)):
        with killed_at(n, told=told):
            sweep(**POPULATION, name=f"torn-{n}-{told}", keep="all")
        torn = resume(f"torn-{n}-{told}")
        assert rows(torn) == rows(whole), f"killed at {n}"
        assert torn.metrics == whole.metrics, f"killed at {n}"


def test_a_population_takes_no_more_members(sweep: Sweep, resume: Sweep) -> None:
    sweep(**POPULATION | {"epochs": 2}, name="p")
    for more in ({"more_trials": 1}, {"retry_failed": True}):
        refused(lambda more=more: resume("p", **more), "A population cannot take more members")


# Repeated seeds


def test_the_winner_of_repeated_seeds_is_the_best_mean(sweep: Sweep, out: io.StringIO) -> None:
    result = sweep(trials=3, seeds=3)
    for row in rows(result):
        assert len(set(row["seeds"])) == 3
        assert row["value"] == pytest.approx(fmean(row["seeds"]))
        assert row["spread"] == pytest.approx(stdev(row["seeds"]))
    best = min(rows(result), key=lambda row: row["value"])
    assert result.extra["best_trial"] == best["trial"]
    assert result.extra["epochs"] == best["best_epoch"], "refitted for the median of the best epochs"
    assert "on validation (mean over seeds)" in out.getvalue()


@pytest.mark.parametrize("n", [1, 3, 5, 8])
@pytest.mark.parametrize("told", [False, True])
def test_repeated_seeds_resume_with_equal_results_after_a_kill(n: int, told: bool, sweep: Sweep, resume: Sweep) -> None:
    asked: dict[str, Any] = {"trials": 3, "seeds": 3}
    whole = sweep(**asked)
    with killed_at(n, told=told):
        sweep(**asked, name="torn")
    torn = resume("torn")
    assert rows(torn) == rows(whole)
    assert torn.metrics == whole.metrics


# Objectives


def test_several_objectives_are_all_in_the_table_and_the_first_wins(sweep: Sweep) -> None:
    result = sweep(objective="x:max,error", trials=4)
    found = rows(result)
    assert all(len(row["values"]) == 2 and row["value"] == row["values"][0] for row in found)
    assert result.extra["best_trial"] == max(found, key=lambda row: row["value"])["trial"]


def test_another_objective_selects_other_epochs(sweep: Sweep) -> None:
    """The toy's x falls from 4, so its largest x is that of the first epoch."""
    assert {row["best_epoch"] for row in rows(sweep(objective="x:max", trials=2))} == {1}
    assert {row["best_epoch"] for row in rows(sweep(objective="x:min", trials=2))} == {4}


@pytest.mark.parametrize("objective", ["eror:min", "x:max,eror:min"])
def test_unreported_objective_stops_the_sweep_in_its_first_epoch(
    objective: str, sweep: Sweep, settings: Settings, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    train = Toy.train_epoch
    monkeypatch.setattr(Toy, "train_epoch", lambda toy, epoch: trained.append(epoch) or train(toy, epoch))
    refused(
        lambda: sweep(objective=objective, trials=3, name="s"),
        "Unknown objective: validation does not report it: got 'eror'; allowed: error, x. Did you mean 'error'?",
    )
    assert trained == [1]
    folder = run_lookup.find(settings.storage, "s")
    assert (folder.status(), folder.record["exit_code"]) == ("failed", USAGE)


def test_refit_failure_of_the_winner_raises_run_failed_with_its_cause(
    sweep: Sweep, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Toy.train_epoch

    def breaks(toy: Toy, epoch: int) -> Any:
        if not toy.runtime.holdout:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")
        return train(toy, epoch)

    monkeypatch.setattr(Toy, "train_epoch", breaks)
    with pytest.raises(RunFailed) as caught:
        sweep(trials=2, name="s")
    log = settings.storage / "s" / "log.txt"
    assert str(caught.value) == (
        "s failed: out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.): accumulate=auto, a smaller "
        f"batch_size or a larger --gpus-per-worker, precision=bf16 may fit (log: {log})"
    )
    assert "breaks" in log.read_text(), "the log must have the traceback"


@pytest.mark.parametrize(("sampler", "space", "trials"), [("cmaes", "mixed", 3), ("gp", "steps", 12)])
def test_parameters_that_a_sampler_draws_at_random_are_announced_once(
    sampler: str, space: str, trials: int, sweep: Sweep, out: io.StringIO
) -> None:
    warnings = logging.StreamHandler(io.StringIO())
    logging.getLogger("optuna").addHandler(warnings)
    try:
        sweep(space, sampler=sampler, trials=trials)
    finally:
        logging.getLogger("optuna").removeHandler(warnings)
    assert out.getvalue().count("at random") == 1
    assert warnings.stream.getvalue() == ""


def test_trials_of_the_pareto_front_are_marked_in_the_table(sweep: Sweep, out: io.StringIO) -> None:
    result = sweep(objective="x:max,error", trials=6)
    found = rows(result)
    unbeaten = sum(
        not any(o["values"][0] >= r["values"][0] and o["values"][1] <= r["values"][1] and o["values"] != r["values"]
                for o in found)
        for r in found
    )  # fmt: skip
    assert sum(line.split().count("front") for line in out.getvalue().splitlines()) == unbeaten


def test_run_with_an_unreported_objective_raises_user_error(settings: Settings, out: io.StringIO) -> None:
    spec = request.experiment("toy", settings, overrides={"epochs": 2, "objective": "eror:min"}, local=True)
    with pytest.raises(UserError, match=r"got 'eror'; allowed: error, x. Did you mean 'error'\?"):
        driver.run(spec, settings, driver.Options(local=True), console(out))


@pytest.mark.parametrize(
    ("nan_at", "cause"),
    [
        ("3 if t.number == 0 else 2", "2 of 3: train/loss is nan at epoch 2"),
        ("4 - t.number", "1 of 3: train/loss is nan at epoch 4"),
    ],
)
def test_commonest_or_first_cause_is_reported_when_all_trials_fail(
    nan_at: str, cause: str, sweep: Sweep, file: Path
) -> None:
    file.write_text(f"def space(t):\n    return {{'lr': t.suggest_float('lr', .1, .2), 'nan_at': {nan_at}}}")
    with pytest.raises(RunFailed, match=cause):
        sweep(trials=3)


# Warm start


def test_warm_start_latest_uses_the_sweep_before_this_one(sweep: Sweep, out: io.StringIO) -> None:
    sweep(trials=3, name="old")
    result = sweep(trials=2, name="new", warm_start=("latest",))
    assert "Learnt from 3 of 3 trials of old" in out.getvalue()
    assert [row["trial"] for row in rows(result)] == [3, 4]
    assert result.extra["trials"] == 2
    assert result.extra["best_trial"] in (3, 4)


@pytest.mark.parametrize("n", [1, 2])
def test_warm_started_sweep_resumes_with_equal_results_after_a_kill(n: int, sweep: Sweep, resume: Sweep) -> None:
    sweep(trials=3, name="old")
    whole = sweep(trials=4, warm_start=("old",))
    with killed_at(n, told=True):
        sweep(trials=4, name="torn", warm_start=("old",))
    assert rows(resume("torn")) == rows(whole)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"warm_start": ("oldd",)}, ("Unknown sweep: got 'oldd'", "Did you mean old?")),
        ({"warm_start": ("old",), "space": "steps", "lr": 0.1}, ("old has no trial that lies in this search space",)),
    ],
)
def test_invalid_warm_start_is_refused_before_the_run_is_created(
    asked: dict[str, Any], words: tuple[str, ...], sweep: Sweep, settings: Settings
) -> None:
    sweep(trials=2, name="old")
    refused(lambda: sweep(**{"name": "new"} | asked), *words)
    assert not (settings.storage / "new").exists()


# The contract of a resume

OTHER = '{"momentum": trial.suggest_float("momentum", 0.0, 0.5)}'


def test_resume_of_a_finished_sweep_without_more_trials_is_refused(sweep: Sweep, resume: Sweep) -> None:
    sweep(trials=2, name="s")
    refused(lambda: resume("s"), "s has already finished", "--more-trials N or --retry-failed")


def test_a_refused_resume_leaves_a_finished_sweep_as_it_was(
    sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """A cluster that is too small or a missing dataset must not turn it into a failed sweep without a result."""
    sweep(trials=2, name="s")
    folder = run_lookup.find(settings.storage, "s", "sweep")
    options = {**folder.record["spec"]["options"], "local": False}
    folder.update(spec={**folder.record["spec"], "options": options})
    before = dict(folder.record), folder.result()
    assert before[1]
    monkeypatch.setattr("orchestrator.cluster.preflight.cluster_gpus", lambda address: 0.0)
    monkeypatch.setattr("orchestrator.sweeps.sweep.cluster", lambda address: nullcontext([{"CPU": 2, "GPU": 0}]))

    def refused_again(settings: Settings, why: str) -> None:
        with pytest.raises(UserError, match=why):
            sweeps.resume(folder, settings, Console(), ResumeOptions(2, resources={"cpus_per_worker": 64}))
        assert (folder.record, folder.result()) == before
        assert run_lookup.find(settings.storage, "s", "sweep").record == before[0]

    settings = replace(settings, ray_address="head:6379")
    refused_again(settings, "The cluster is too small")
    monkeypatch.setattr("orchestrator.cluster.preflight.dataset", _gone)
    refused_again(settings, "The dataset is gone")


def _gone(*_: Any, **__: Any) -> None:
    raise UserError("The dataset is gone")


def test_sweep_resumes_on_a_machine_with_fewer_cpus(
    sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(trials=1, name="s")
    monkeypatch.setattr("orchestrator.cluster.preflight.this_machine", lambda: [{"CPU": 0.5, "GPU": 0.0}])
    devices: list[float] = []
    take = worker.take_device
    monkeypatch.setattr(worker, "take_device", lambda given: devices.append(given.cpus_per_worker) or take(given))
    assert resume("s", more_trials=1).status == "finished"
    assert devices == [0.5]


@pytest.mark.parametrize("interrupted", [True, False])
def test_trials_added_on_resume_equal_those_of_one_longer_sweep(interrupted: bool, sweep: Sweep, resume: Sweep) -> None:
    """Six trials in one sweep, or three of them first: the same six trials and the same winner."""
    whole = sweep(trials=6, sampler="random")
    if interrupted:
        with interrupted_at(4):
            sweep(trials=4, sampler="random", name="s")
        result = resume("s", more_trials=2)
    else:
        assert values(sweep(trials=3, sampler="random", name="s")) == values(whole)[:3]
        result = resume("s", more_trials=3)
    assert rows(result) == rows(whole)
    assert result.extra["best_trial"] == whole.extra["best_trial"]
    assert result.metrics == whole.metrics, "the new winner was refitted and tested"


@pytest.mark.parametrize("better", [True, False])
def test_the_winner_changes_only_where_it_is_beaten(
    better: bool, sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(trials=2, name="s", refit=False)
    evaluate = Toy.evaluate

    def shifted(self: Toy, split: Any) -> Any:
        found = evaluate(self, split)
        worth = 0.0 if better else 1e6
        error = found.metrics["error"] * (worth if better else 1) + worth
        return type(found)({**found.metrics, "error": error if split == "validation" else 0.125}, found.units)

    monkeypatch.setattr(Toy, "evaluate", shifted)
    second = resume("s", more_trials=1)
    assert second.extra["best_trial"] == (2 if better else first.extra["best_trial"])
    assert (second.metrics["test/error"] == 0.125) is better, "an unchanged winner must not be tested again"
    if not better:
        assert second.metrics == first.metrics


def test_retry_failed_repeats_the_points_and_counts_only_the_retries(sweep: Sweep, resume: Sweep, file: Path) -> None:
    first = sweep("broken", trials=4, name="s")
    assert (first.exit_code, first.status, first.extra["failed"]) == (PARTIAL, "partial", 2)
    still = resume("s", retry_failed=True)
    assert [row["state"] for row in rows(still)] == ["complete", "fail", "fail", "complete", "fail", "fail"]
    assert (still.exit_code, still.extra["failed"]) == (PARTIAL, 2), "retried trials must not count"
    assert [points(still)[n] for n in (4, 5)] == [points(still)[n] for n in (1, 2)]


@pytest.mark.parametrize("replaced", [False, True])
def test_failed_resume_keeps_the_result_until_there_is_another_winner(
    replaced: bool, sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    first = sweep(trials=2, name="s", max_failures=1)
    train = Toy.train_epoch

    def fails(self: Toy, epoch: int) -> Any:
        if not replaced or not self.runtime.holdout:  # each trial, or the refit of the new winner
            raise ValueError("none of it")
        return train(self, epoch)

    monkeypatch.setattr(Toy, "train_epoch", fails)
    if replaced:
        monkeypatch.setattr(Toy, "evaluate", lambda self, split: Evaluation({"error": 0.0}, {}))
    with pytest.raises(RunFailed):
        resume("s", more_trials=3)
    folder = run_lookup.find(settings.storage, "s", "sweep")
    assert (folder.status(), folder.result()) == ("failed", {} if replaced else first.to_json())


def test_sweep_of_failing_trials_stops_and_completes_with_retry_failed(
    sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """Without the limit on failures, sixty of sixty such trials ran."""

    def missing(self: Toy, epoch: int) -> Any:
        raise FileNotFoundError(f"no such file: /typo (process {epoch})")

    with monkeypatch.context() as patch:
        patch.setattr(Toy, "train_epoch", missing)
        with pytest.raises(RunFailed) as caught:
            sweep(trials=9, name="s")
    for words in ("stopped, 5 of 5 trials failed with: FileNotFoundError: no such file: /typo", "--retry-failed"):
        assert words in str(caught.value)
    folder = run_lookup.find(settings.storage, "s", "sweep")
    assert (folder.status(), folder.record["exit_code"]) == ("failed", FAILED)
    result = resume("s", retry_failed=True)
    assert [row["state"] for row in rows(result)] == ["fail"] * 5 + ["complete"] * 9
    assert (result.exit_code, result.status) == (DONE, "finished")


def test_sweep_fails_on_a_lost_accelerator_and_resumes_all_trials(
    sweep: Sweep, resume: Sweep, file: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    """In an earlier version ten of twelve trials failed within milliseconds, and then the winner's evaluation."""
    monkeypatch.setenv(toy.LOST, str(tmp_path / "lost"))
    monkeypatch.setattr(toy, "lost", set())
    file.write_text(SPACES.replace("nan_at", "lost_at"))
    with pytest.raises(RunFailed) as caught:
        sweep("broken", trials=4, name="s")
    for words in ("the accelerator was lost: CUDA error: an illegal memory", "orchestrator sweep --resume s"):
        assert words in str(caught.value)
    assert run_lookup.find(settings.storage, "s", "sweep").status() == "failed"
    toy.lost.clear()  # as in another process
    result = resume("s")
    assert (result.exit_code, [row["state"] for row in rows(result)]) == (DONE, ["complete"] * 4)


def test_max_failures_sets_the_number_of_failures_that_stop_a_sweep(sweep: Sweep, file: Path) -> None:
    file.write_text(file.read_text().replace("BROKEN = {1, 2}", "BROKEN = set(range(6))"))
    with pytest.raises(RunFailed, match=r"stopped, 5 of 5 trials failed with: .*nan"):
        sweep("broken", trials=7)
    assert sweep("broken", trials=7, max_failures=7).status == "partial"
    with pytest.raises(RunFailed, match="stopped, 1 of 1 trials failed"):
        sweep("broken", trials=7, max_failures=1)


def test_retried_trial_has_the_result_of_an_undisturbed_one(
    sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, left = Toy.train_epoch, [6]

    def unlucky(self: Toy, epoch: int) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("the disk was full")
        return train(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Toy, "train_epoch", unlucky)
        first = sweep(trials=3, sampler="random", name="s")
    assert [row["state"] for row in rows(first)].count("fail") == 1
    assert "OSError: the disk was full (test_sweep.py:" in rows(first)[1]["cause"]
    second = resume("s", retry_failed=True)
    assert (second.exit_code, second.status, second.extra["failed"]) == (DONE, "finished", 0)
    alone = sweep(trials=3, sampler="random")
    assert (values(second)[3], points(second)[3]) == (values(alone)[1], points(alone)[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SPACES.replace("0.01, 0.2)}", "0.01, 0.3)}"), ("lr: float 0.01 to 0.2 -> float 0.01 to 0.3",)),
        (
            SPACES.replace('{"lr": trial.suggest_float("lr", 0.01, 0.2)}', OTHER),
            ("lr: float 0.01 to 0.2 -> not searched", "momentum: not searched -> float 0.0 to 0.5"),
        ),
    ],
)  # fmt: skip
def test_resume_with_a_changed_search_space_is_refused(
    text: str, words: tuple[str, ...], sweep: Sweep, resume: Sweep, file: Path
) -> None:
    with interrupted_at(2):
        sweep(trials=4, name="s")
    file.write_text(text)
    for more in ({}, {"more_trials": 2}, {"retry_failed": True}):
        refused(
            lambda more=more: resume("s", **more),
            "s cannot be resumed: its search space or objective has changed",
            *words,
            f"Restore it ({file}:space), or start a new sweep with --warm-start s",
        )


def test_resume_with_a_changed_space_of_a_package_is_refused(
    resume: Sweep, settings: Settings, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    high = 0.2
    own = {"space": lambda trial: {"lr": trial.suggest_float("lr", 0.01, high)}}
    monkeypatch.setattr(spaces, "presets", lambda workload: own)
    search = {"trials": 3, "scheduler": "none"}
    spec = request.sweep("toy", settings, overrides={"epochs": 4}, search=search, local=True)
    with interrupted_at(2):
        sweeps.sweep(spec, settings, driver.Options(local=True, name="s"), console(out))
    high = 0.3
    fix = "Continue it with the version that began it, or start a new sweep with --warm-start s"
    refused(lambda: resume("s"), "lr: float 0.01 to 0.2 -> float 0.01 to 0.3", fix)


def test_resume_with_a_changed_objective_is_refused(
    sweep: Sweep, resume: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interrupted_at(2):
        sweep(trials=4, name="s")
    monkeypatch.setattr(Toy, "objective", Objective("x", "max", refit=True))
    refused(lambda: resume("s"), "has changed: got objective: error:min -> x:max")


def test_sweep_without_a_recorded_contract_resumes(sweep: Sweep, resume: Sweep, settings: Settings) -> None:
    with interrupted_at(2):
        sweep(trials=3, name="s")
    folder = run_lookup.find(settings.storage, "s")
    del folder.record["spec"]["contract"]
    folder.update()
    assert resume("s").exit_code == DONE


class LaterParams(toy.Params):
    """The parameters of a later version: another default, and an additional parameter."""

    momentum: float = 0.9
    added: bool = False


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("ended", [False, True])
def test_trials_keep_the_defaults_that_their_sweep_began_with(
    ended: bool, refit: bool, sweep: Sweep, resume: Sweep, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial continues from its checkpoint; the other trials and the winner are trained as before."""
    expected = sweep(trials=4, name="whole", refit=refit)
    if ended:
        sweep(trials=2, name="s", refit=refit, keep="all")
    else:
        with interrupted_at(2):
            sweep(trials=4, name="s", refit=refit, keep="all")
    monkeypatch.setattr(toy, "Params", LaterParams)
    result = resume("s", more_trials=2 if ended else 0)
    assert (result.exit_code, rows(result), result.metrics) == (DONE, rows(expected), expected.metrics)
    assert "Trials keep the defaults that s began with: momentum=0.5 (now 0.9)" in out.getvalue()


def test_resume_of_a_sweep_without_recorded_defaults_prints_a_notice(
    sweep: Sweep, resume: Sweep, settings: Settings, out: io.StringIO
) -> None:
    with interrupted_at(2):
        sweep(trials=3, name="s")
    folder = run_lookup.find(settings.storage, "s")
    for name in ("defaults", "parameters"):  # version 0.1.0 had none
        del folder.record["spec"]["contract"][name]
    folder.update()
    assert resume("s").exit_code == DONE
    assert "s was begun by a version that recorded no defaults" in out.getvalue()


def test_resume_is_refused_while_another_process_drives_the_sweep(
    sweep: Sweep, resume: Sweep, settings: Settings
) -> None:
    with interrupted_at(2):
        sweep(trials=3, name="s")
    other = run_lookup.find(settings.storage, "s")
    other.acquire()
    refused(lambda: resume("s"), "s is being driven by another process", "orchestrator stop s")
    other.release("interrupted", 130)
    assert resume("s").exit_code == DONE


def test_resume_without_the_journal_is_refused(sweep: Sweep, resume: Sweep, settings: Settings) -> None:
    with interrupted_at(2):
        sweep(trials=3, name="s")
    (settings.storage / "s" / "study.jsonl").unlink()
    refused(lambda: resume("s"), "s has lost its journal, study.jsonl", "Restore it")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s", ("The name s is in use by a sweep. Choose another with --name.",)),
        ("latest", ("The name is not valid: got 'latest'", "The word latest is reserved")),
        ("a/b", ("The name is not valid: got 'a/b'",)),
        ("", ("The name is not valid: got ''",)),
    ],
)
def test_invalid_or_used_name_is_refused(name: str, words: tuple[str, ...], sweep: Sweep) -> None:
    sweep(trials=1, name="s")
    refused(lambda: sweep(trials=1, name=name), *words)


# Checkpoints


@pytest.mark.parametrize(
    ("keep", "trials", "winner"), [("winner", False, True), ("all", True, True), ("none", False, False)]
)
def test_keep_sets_which_checkpoints_remain_after_a_sweep(
    keep: str, trials: bool, winner: bool, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.engine.loop.CHECKPOINT_SECONDS", 0.0)
    result = sweep(trials=2, keep=keep, checkpoint_every=1)
    assert (result.folder / "trials").exists() is trials
    assert bool(list((result.folder / "winner").glob("**/checkpoint-*"))) is winner
    assert (result.folder / "winner" / "outcome.json").exists()


@pytest.mark.parametrize(
    ("capacities", "cpus", "says"),
    [
        ([1], [0, 4], "1 trial at once on 1 node"),
        ([1, 1], [0, 1, 1], "2 trials at once on 2 nodes"),
        ([2, 2], [0, 4, 4], "4 trials at once in 2 processes on 2 nodes"),
    ],
)
def test_head_without_cpus_is_not_counted_as_a_node_of_the_trials(
    capacities: list[int], cpus: list[int], says: str
) -> None:
    spec = SweepSpec(workload="toy", search=Search(trials=9))
    assert sweeps._at_once(spec, capacities, [{"CPU": count, "GPU": 0} for count in cpus]) == says
