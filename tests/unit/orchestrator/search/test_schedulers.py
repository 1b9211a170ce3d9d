"""Rungs: asynchronous halving matches its definition; Hyperband and the median rule decide as Optuna does."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from orchestrator.search.schedulers import REDUCTION, rungs
from orchestrator.search.study import Study
from tests.support.searching import at_rung, attributes, begin, complete, rows, states, study
from workloads.contract import Objective


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 9, 50, 81, 1000])
def test_rungs_are_below_the_budget_and_a_reduction_apart(epochs: int) -> None:
    found = rungs(epochs, "asha")
    assert all(1 <= rung < epochs for rung in found)
    assert all(later == REDUCTION * earlier for earlier, later in pairwise(found))
    assert bool(found) is (epochs > 1)
    assert rungs(epochs, "none") == ()


@pytest.mark.parametrize("direction", ["min", "max"])
def test_asha_promotes_only_the_best_share_of_a_rung(direction: Any, tmp_path: Path) -> None:
    """Asynchronous halving by its definition: the best 1/REDUCTION of a rung so far are promoted.

    With fewer than REDUCTION trials at a rung, only the best one is promoted.
    """
    sign = 1 if direction == "min" else -1
    running = study(tmp_path, Objective("error", direction), decide_at=(3, 9), trials=12)
    values = [5.0, 3.0, 4.0, 1.0, 2.0, 6.0, 0.5, 9.0, 0.7, 0.6, 8.0, 0.1]
    seen: list[float] = []
    for value in values:
        number = begin(running).number
        verdict = at_rung(running, number, 3, sign * value)
        seen.append(value)
        promoted = value in sorted(seen)[: max(1, len(seen) // REDUCTION)]
        assert verdict == ("go on" if promoted else "pruned"), seen


def test_rung_compares_trained_values_not_the_value_of_epoch_0(tmp_path: Path) -> None:
    """Epoch 0 is the same for all trials. A rung compares their values after training, not their best values so far."""
    running = study(tmp_path, decide_at=(3, 9), trials=3)
    verdicts = []
    for value in (2.0, 4.0, 3.0):
        number = begin(running).number
        assert running.report(number, rows((0, 0.5)), 0.5, False, attributes(0.5, 0, 0)) == "go on"
        verdicts.append(running.report(number, rows((1, 5.0), (3, value)), 0.5, False, attributes(0.5, 3, 0)))
    assert verdicts == ["go on", "pruned", "pruned"]
    assert [trial.intermediate_values for trial in running.trials] == [{3: 2.0}, {3: 4.0}, {3: 3.0}]


def reference(scheduler: str) -> optuna.Study:
    """Optuna alone, with its own pruner, in memory."""
    pruner: optuna.pruners.BasePruner = optuna.pruners.MedianPruner(n_startup_trials=5)
    if scheduler == "hyperband":
        pruner = optuna.pruners.HyperbandPruner(min_resource=3, max_resource=27, reduction_factor=3)
    return optuna.create_study(study_name="sweep", pruner=pruner, direction="minimize")


@pytest.mark.parametrize("scheduler", ["hyperband", "median"])
@pytest.mark.parametrize("restart", [False, True])
def test_hyperband_and_median_decide_as_optuna_does(scheduler: str, restart: bool, tmp_path: Path) -> None:
    def ours() -> Study:
        return study(tmp_path, decide_at=rungs(27, scheduler), scheduler=scheduler, trials=40)  # type: ignore[arg-type]

    assert rungs(27, "hyperband") == (3, 9)
    assert rungs(27, "median") == tuple(range(2, 27, 2))
    values, running, theirs = random.Random(7), ours(), reference(scheduler)
    verdicts: list[str] = []
    for number in range(40):
        running = ours() if restart else running
        trial = theirs.ask()
        assert begin(running).number == trial.number == number
        level = values.uniform(0, 1)
        for rung in running.spec.plan.decide_at:
            value = level + values.uniform(0, 0.3)
            trial.report(value, rung)
            verdicts.append(at_rung(running, number, rung, value))
            assert verdicts[-1] == ("pruned" if trial.should_prune() else "go on"), (number, rung)
            if verdicts[-1] == "pruned":
                theirs.tell(trial, state=TrialState.PRUNED)
                break
        else:
            theirs.tell(trial, level)
            complete(running, number, level)
    assert min(verdicts.count("pruned"), states(running).count("COMPLETE")) > 5


def test_hyperband_decisions_are_equal_for_sweeps_with_the_same_seed(tmp_path: Path) -> None:
    """Optuna draws them from the study's name, which must not be the sweep's own, and at the first request for one."""

    def told(folder: Path, restarts: bool = False) -> list[str]:
        def ours() -> Study:
            return study(folder, decide_at=(3, 9), scheduler="hyperband", sampler="tpe", trials=20)

        running, found = ours(), list[str]()
        for number in range(20):
            running = ours() if restarts else running
            lr = begin(running).params["lr"]
            found += [f"{lr}", at_rung(running, number, 3, lr)]
            if found[-1] == "go on":
                complete(running, number, lr)
        return found

    whole = told(tmp_path / "a")
    assert told(tmp_path / "b") == whole
    assert told(tmp_path / "c", restarts=True) == whole


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median", "racing"])
def test_no_trial_is_stopped_where_all_values_are_equal(scheduler: str, tmp_path: Path) -> None:
    """For example the zeros of the workload lifelong before the end of session 0."""
    decide_at = rungs(27, scheduler)
    running = study(tmp_path, decide_at=decide_at, trials=9, scheduler=scheduler)
    for _ in range(9):
        number = begin(running).number
        assert [at_rung(running, number, epoch, 0.0) for epoch in decide_at] == ["go on"] * len(decide_at)
        complete(running, number, 0.0)


def test_no_trial_is_pruned_between_rungs(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,))
    for value in (0.1, 0.2, 0.3):
        at_rung(running, begin(running).number, 3, value)
    last = begin(running).number
    assert running.report(last, rows((1, 99.0), (2, 99.0)), 99.0, False, {}) == "go on"
    assert at_rung(running, last, 3, 99.0) == "pruned"


def test_trial_at_its_last_epoch_completes_and_is_not_pruned(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,))
    for value in (0.1, 0.2, 0.3):
        at_rung(running, begin(running).number, 3, value)
    last = begin(running).number
    assert running.report(last, rows((3, 99.0)), 99.0, True, {}) == "complete"


def test_rung_values_and_pruned_trials_are_kept_over_a_restart(tmp_path: Path) -> None:
    first = study(tmp_path, decide_at=(3,))
    for value in (0.1, 0.2, 0.3, 0.4):
        at_rung(first, begin(first).number, 3, value)
    begun, ended = len(first.trials), [t.number for t in first.trials if t.state == TrialState.PRUNED]
    assert ended
    second = study(tmp_path, decide_at=(3,))
    taken_up = []
    while (trial := second.next()) and trial.number < begun:
        taken_up.append(trial.number)
    assert not set(taken_up) & set(ended), "a pruned trial must stay pruned"
    assert trial is not None
    assert at_rung(second, trial.number, 3, 99.0) == "pruned"


@pytest.mark.filterwarnings("error:The reported value is ignored")
def test_a_resumed_trial_that_states_its_rung_again_changes_nothing(tmp_path: Path) -> None:
    first = study(tmp_path, decide_at=(3,))
    for value in (0.9, 0.8, 0.7):
        at_rung(first, begin(first).number, 3, value)
    leader = begin(first).number
    assert at_rung(first, leader, 3, 0.1) == "go on"
    second = study(tmp_path, decide_at=(3,))
    while begin(second).number != leader:
        pass
    assert second.report(leader, rows((1, 0.9), (2, 0.5), (3, 0.1)), 0.1, False, {}) == "go on"
    assert second.trials[leader].intermediate_values == {3: 0.1}


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_pruning_decision_is_kept_after_the_driver_dies(scheduler: Any, tmp_path: Path) -> None:
    """The driver dies between a decision and the trial's end. Values of other trials may change before the resume."""
    decide_at = rungs(27, scheduler)
    options: dict[str, Any] = {"decide_at": decide_at, "scheduler": scheduler, "trials": 20}
    first = study(tmp_path, **options)
    for _ in range(5):
        number = begin(first).number
        for rung in decide_at:
            at_rung(first, number, rung, 0.1)
        complete(first, number, 0.1)
    weak = begin(first).number

    class Died(BaseException): ...

    def die(*args: Any, **keywords: Any) -> None:
        raise Died

    first.optuna_study.tell = die  # type: ignore[method-assign]
    rung, verdict = decide_at[0], "go on"
    for rung in decide_at:
        try:
            at_rung(first, weak, rung, 99.0)
        except Died:
            verdict = "pruned"
            break
    assert verdict == "pruned"
    second = study(tmp_path, **options)
    assert begin(second).number == weak
    assert at_rung(second, weak, rung, 99.0) == "pruned"


def test_a_trial_that_went_on_at_a_rung_is_not_stopped_there_after_a_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"decide_at": rungs(27, "median"), "scheduler": "median", "trials": 20}
    first = study(tmp_path, **options)
    slow = begin(first).number
    for rung in (2, 4):
        assert at_rung(first, slow, rung, 9.0) == "go on"
    for _ in range(5):  # afterwards five better trials are complete
        number = begin(first).number
        for rung in rungs(27, "median"):
            at_rung(first, number, rung, 0.1)
        complete(first, number, 0.1)
    second = study(tmp_path, **options)
    assert begin(second).number == slow
    assert [at_rung(second, slow, rung, 9.0) for rung in (2, 4)] == ["go on", "go on"]
    assert at_rung(second, slow, 6, 9.0) == "pruned"
