"""The study: the exact number of trials, their ends as Optuna records them, and no loss after a kill."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from orchestrator.errors import UserError
from orchestrator.search import samplers, sweep_trials
from orchestrator.search.journal import open_study
from orchestrator.search.study import Trial
from tests.support.searching import at_rung, begin, complete, rows, states, study
from workloads.contract import Objective

JOURNAL = "study.jsonl"


# Number of trials


def test_exactly_the_requested_number_of_trials_is_started(tmp_path: Path) -> None:
    running = study(tmp_path)
    numbers = [begin(running).number for _ in range(6)]
    assert numbers == [0, 1, 2, 3, 4, 5]
    assert running.next() is None
    assert running.running() == numbers


def test_pruned_failed_and_discarded_trials_count_as_trials(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,), trials=4)
    for value in (1.0, 2.0):
        at_rung(running, begin(running).number, 3, value)
    running.fail(begin(running).number, "train/loss is nan at epoch 2")
    running.discard(begin(running).number, "the time budget was spent")
    assert running.next() is None


def test_number_of_trials_is_exact_after_restarts(tmp_path: Path) -> None:
    seen: list[int] = []
    while True:
        running = study(tmp_path)  # a new process after a kill
        started: list[Trial] = []
        while len(started) < 2 and (trial := running.next()):
            started.append(trial)
        if not started:
            break
        seen += [trial.number for trial in started]
        complete(running, started[0].number, 1.0)
    assert seen == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "each restart first resumes the trial that was left running"
    assert states(running) == ["COMPLETE"] * 6


def test_interrupted_trials_resume_first_with_the_same_parameters(tmp_path: Path) -> None:
    first = study(tmp_path)
    asked = [begin(first) for _ in range(3)]
    complete(first, 1, 0.5)
    second = study(tmp_path)
    again = [begin(second) for _ in range(3)]
    assert [trial.number for trial in again] == [0, 2, 3]
    assert [trial.params for trial in again[:2]] == [asked[0].params, asked[2].params]


def test_discarded_trial_is_not_resumed(tmp_path: Path) -> None:
    first = study(tmp_path)
    first.discard(begin(first).number, "the time budget was spent")
    assert begin(study(tmp_path)).number == 1
    assert first.trials[0].user_attrs == {
        "params": first.trials[0].params,
        "cut": True,
        "cause": "the time budget was spent",
    }


# The sampler


def test_with_many_trials_at_once_the_next_one_is_asked_for_ahead(tmp_path: Path, monkeypatch: Any) -> None:
    running = study(tmp_path, sampler="tpe", trials=10)
    for _ in range(7):
        begin(running)
    running.ask_ahead()
    assert len(running.trials) == 7, "with few concurrent trials none is asked ahead"
    assert begin(running).number == 7
    running.ask_ahead()
    running.ask_ahead()
    assert len(running.trials) == 9, "only one trial is asked ahead"
    assert running.running() == list(range(8))
    asked = running.trials[8].params
    with monkeypatch.context() as patch:
        patch.setattr(running.optuna_study, "ask", lambda: pytest.fail("a free device waits for a suggestion"))
        ahead = begin(running)
    assert (ahead.number, ahead.params) == (8, asked)
    running.ask_ahead()
    for number in range(9):
        complete(running, number, float(number))
    assert not running.exhausted()
    assert running.exhausted(fresh=False)
    assert running.next(fresh=False) is None
    resumed = study(tmp_path, sampler="tpe", trials=10)
    assert begin(resumed).params == running.trials[9].params
    assert resumed.next() is None


@pytest.mark.parametrize("about", [{"sampler": "random"}, {"sampler": "tpe", "trials": 8}])
def test_no_trial_is_asked_ahead_with_random_sampler_or_at_the_limit(about: dict[str, Any], tmp_path: Path) -> None:
    running = study(tmp_path, **{"trials": 10, **about})
    for _ in range(8):
        begin(running)
    running.ask_ahead()
    assert len(running.trials) == 8


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_restart_does_not_change_the_suggestions_of_the_sampler(sampler: str, tmp_path: Path) -> None:
    def params(folder: Path, restart: Callable[[int], bool]) -> list[dict[str, Any]]:
        folder.mkdir()
        running, found = study(folder, sampler=sampler, trials=14), []
        for number in range(14):
            if restart(number):
                running = study(folder, sampler=sampler, trials=14)
            trial = begin(running)
            found.append(trial.params)
            complete(running, number, trial.params["lr"])
        return found

    whole = params(tmp_path / "whole", lambda number: False)
    assert len({str(p) for p in whole}) == 14
    assert params(tmp_path / "torn", lambda number: number % 3 == 2) == whole


@pytest.mark.parametrize("reached", ["ask", "first suggestion"])
def test_trial_interrupted_while_it_was_sampled_is_resumed(
    reached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_folder, folder = tmp_path / "whole", tmp_path / "torn"
    whole_folder.mkdir()
    folder.mkdir()
    whole, dying = begin(study(whole_folder)).params, study(folder)

    def half(trial: Any) -> dict[str, Any]:
        if reached == "first suggestion":
            trial.suggest_categorical("kind", ["a", "b"])
        raise KeyboardInterrupt

    monkeypatch.setattr(dying, "_space", half)
    with pytest.raises(KeyboardInterrupt):
        dying.next()
    again = study(folder)
    trial = begin(again)
    assert trial.number == 0
    assert trial.params == whole
    complete(again, 0, 1.0)
    best = again.best()
    assert best is not None
    assert best.user_attrs["params"] == trial.params


def test_parameters_differ_with_another_seed(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 5), ("b", 6)):
        (tmp_path / name).mkdir()
        running = study(tmp_path / name)
        running.spec = running.spec.model_copy(update={"seed": seed})
        found.append(begin(running).params)
    assert found[0] != found[1]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "cmaes"])
def test_every_sampler_suggests_values_within_the_range(sampler: str, tmp_path: Path) -> None:
    running = study(tmp_path, sampler=sampler, trials=11)
    for number in range(11):
        trial = begin(running)
        assert 0 <= trial.params["lr"] <= 1
        complete(running, number, trial.params["lr"])


def test_tpe_learns_after_five_trials(tmp_path: Path) -> None:
    """From the sixth trial on, its suggestions differ from random ones and depend on the values."""
    suggested: dict[str, list[Any]] = {}
    for name, sampler, sign in (("random", "random", 1), ("tpe", "tpe", 1), ("turned", "tpe", -1)):
        running = study(tmp_path / name, sampler=sampler, trials=6)
        suggested[name] = []
        for number in range(6):
            params = begin(running).params
            suggested[name].append(params)
            complete(running, number, sign * params["lr"])
    first = {name: params[:5] for name, params in suggested.items()}
    last = {name: params[5] for name, params in suggested.items()}
    assert first["tpe"] == first["turned"] == first["random"]
    assert last["tpe"] != last["turned"]
    assert last["tpe"] != last["random"]


def dependent(trial: Any) -> dict[str, Any]:
    """Only kind ``b`` has a momentum."""
    kind = trial.suggest_categorical("kind", ["a", "b"])
    found = {"kind": kind, "lr": trial.suggest_float("lr", 0.0, 1.0)}
    return found | ({"momentum": trial.suggest_float("momentum", 0.0, 1.0)} if kind == "b" else {})


def test_tpe_is_grouped_in_a_conditional_space_and_learns_the_best_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped: list[bool] = []

    def sampler(seed: int, group: bool = False, **options: Any) -> TPESampler:
        grouped.append(group)
        return TPESampler(seed=seed, group=group, **options)

    monkeypatch.setattr(samplers, "TPESampler", sampler)
    running = study(tmp_path, space=dependent, conditional=True, sampler="tpe", trials=30)
    late: list[float] = []
    for number in range(30):
        params = begin(running).params
        assert ("momentum" in params) is (params["kind"] == "b")
        complete(running, number, params["lr"] + (1 - params["momentum"] if params["kind"] == "b" else 2.0))
        if number >= 20:
            late.append(params.get("momentum", 0.0))
    assert all(grouped)
    assert sum(late) / len(late) > 0.6, "the best lies at kind=b, momentum=1"


def test_cma_es_learns_and_keeps_no_pickle(tmp_path: Path) -> None:
    running = study(tmp_path, sampler="cmaes", trials=60)
    found = []
    for number in range(60):
        if number == 30:
            running = study(tmp_path, sampler="cmaes", trials=60)
        trial = begin(running)
        found.append((trial.params["lr"] - 0.25) ** 2 + (trial.params["dim"] / 64 - 0.5) ** 2)
        complete(running, number, found[-1])
    assert sum(found[-10:]) < sum(found[:10]) / 2
    assert "optimizer" not in (tmp_path / JOURNAL).read_text()


def test_cma_es_passes_all_trials_once_for_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one pass for each generation, a suggestion after 10,000 trials would take half a minute."""
    running = study(tmp_path, sampler="cmaes", trials=40)
    for number in range(39):
        trial = begin(running)
        complete(running, number, (trial.params["lr"] - 0.25) ** 2)
    passes: list[int] = []
    original = samplers.ReplayedCmaEs._get_solution_trials

    def counted(self: Any, trials: Any, generation: int) -> Any:
        passes.append(generation)
        return original(self, trials, generation)

    monkeypatch.setattr(samplers.ReplayedCmaEs, "_get_solution_trials", counted)
    begin(running)
    assert len(passes) == 1, "only Optuna's own pass"
    assert passes[0] >= 5


# Trials in Optuna's study


def test_end_of_each_trial_is_recorded_in_the_optuna_study(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,), trials=4)
    numbers = [begin(running).number for _ in range(4)]
    assert at_rung(running, numbers[0], 3, 0.5) == "go on"
    assert at_rung(running, numbers[1], 3, 0.9) == "pruned"
    assert running.fail(numbers[2], "train/loss is nan at epoch 2") == "failed"
    assert complete(running, numbers[0], 0.25) == "complete"
    optuna_study = open_study(tmp_path)
    found = optuna_study.get_trials()
    assert [t.state for t in found] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]
    assert (found[0].value, found[0].intermediate_values) == (0.25, {3: 0.5})
    assert found[1].intermediate_values == {3: 0.9}
    assert found[2].user_attrs["cause"] == "train/loss is nan at epoch 2"
    assert optuna_study.direction == optuna.study.StudyDirection.MINIMIZE


def test_the_value_of_a_complete_trial_is_its_best_and_only_rungs_are_kept(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,), scheduler="none")
    number = begin(running).number
    assert running.report(number, rows((1, 0.9), (2, 0.8)), 0.8, False, {}) == "go on"
    assert running.report(number, rows((26, 0.2), (27, 0.4)), 0.2, True, {"best_epoch": 26}) == "complete"
    (trial,) = running.trials
    assert (trial.value, trial.user_attrs["best_epoch"], trial.intermediate_values) == (0.2, 26, {})


@pytest.mark.parametrize("best", [None, math.nan, math.inf])
def test_trial_that_ends_without_a_finite_objective_fails(best: float | None, tmp_path: Path) -> None:
    running = study(tmp_path)
    assert running.report(begin(running).number, [], best, True, {}) == "failed"
    assert running.trials[0].user_attrs["cause"] == "the objective validation/error was never reported"


@pytest.mark.parametrize(("direction", "expected"), [("min", 1), ("max", 3)])
def test_best_trial_is_complete_and_a_tie_goes_to_the_first(direction: Any, expected: int, tmp_path: Path) -> None:
    running = study(tmp_path, Objective("error", direction))
    for number, value in enumerate((0.5, 0.1, 0.1, 0.9, 0.9)):
        begin(running)
        complete(running, number, value)
    last = begin(running).number
    running.report(last, rows((1, 0.0 if direction == "min" else 1.0)), 0.0, False, {})
    running.fail(last, "killed")
    best = running.best()
    assert best is not None
    assert best.number == expected


def test_best_is_none_without_a_complete_trial(tmp_path: Path) -> None:
    running = study(tmp_path)
    running.fail(begin(running).number, "diverged")
    assert running.best() is None


def test_each_trial_is_examined_once_for_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(sweep_trials, "is_additional", lambda trial: looked.append(trial.number) or trial.number == 1)
    running = study(tmp_path, trials=30)
    for _ in range(3):
        begin(running)
        assert running.target == 30 + (len(running.trials) > 1)
        assert running.target == 30 + (len(running.trials) > 1)
    assert sorted(looked) == [0, 1, 2]


# Retries


def test_a_failed_trial_is_tried_again_once_with_its_parameters_and_seed(tmp_path: Path) -> None:
    def by_number(trial: Any) -> dict[str, Any]:
        return {"lr": trial.suggest_float("lr", 0.0, 1.0), "nan_at": 3 if trial.number % 2 else None}

    first = study(tmp_path, space=by_number, trials=3)
    asked = [begin(first) for _ in range(3)]
    complete(first, 0, 0.5)
    for number in (1, 2):
        first.fail(number, "the disk was full")
    assert first.next() is None

    second = study(tmp_path, space=by_number, trials=3)
    assert second.retry_failed() == 2
    assert second.retry_failed() == 0, "the failed trials are already enqueued"
    assert (second.target, second.exhausted()) == (5, False)
    again = [begin(second), begin(second)]
    assert [(t.number, t.origin, t.params) for t in again] == [(3, 1, asked[1].params), (4, 2, asked[2].params)]
    assert second.next() is None
    assert [t.number for t in second.failed()] == []
    complete(second, 3, 0.1)
    second.fail(4, "the disk is full still")
    assert [t.number for t in second.failed()] == [4]

    for number in (5, 6):
        later = study(tmp_path, space=by_number, trials=3)
        assert later.retry_failed() == 1
        last = begin(later)
        assert (last.number, last.origin, last.params) == (number, 2, asked[2].params), "the first attempt's seed"
        later.fail(number, "and still")


def test_a_trial_that_waits_is_begun_before_new_ones_and_after_a_restart(tmp_path: Path) -> None:
    first = study(tmp_path, trials=2)
    params = begin(first).params
    first.fail(0, "the disk was full")
    first.retry_failed()
    second = study(tmp_path, trials=4)
    found = [begin(second) for _ in range(4)]
    assert [t.number for t in found] == [1, 2, 3, 4]
    assert [t.params for t in found].index(params) == 0
    assert second.next() is None


def test_enqueued_trials_get_different_values_for_open_parameters(tmp_path: Path) -> None:
    """They differ from each other and from the new trial that follows."""
    running = study(tmp_path, trials=1)
    for request in ("first", "second"):
        running.add({"kind": "a"}, request)
    found = [begin(running).params for _ in range(3)]
    assert len({params["lr"] for params in found}) == 3


def test_trial_discarded_by_a_budget_is_not_retried(tmp_path: Path) -> None:
    running = study(tmp_path)
    running.discard(begin(running).number, "the time budget was spent")
    assert running.retry_failed() == 0
    assert running.failed() == []


def test_only_begun_trials_continue_when_no_new_ones_are_allowed(tmp_path: Path) -> None:
    first = study(tmp_path)
    begin(first)
    assert first.next(fresh=False) is None
    assert (first.exhausted(fresh=False), first.exhausted()) == (True, False)
    second = study(tmp_path)
    assert second.exhausted(fresh=False) is False
    left = second.next(fresh=False)
    assert left is not None
    assert left.number == 0
    assert second.next(fresh=False) is None


def test_unfinished_trials_of_a_dead_driver_can_be_discarded(tmp_path: Path) -> None:
    first = study(tmp_path)
    begin(first), begin(first)
    second = study(tmp_path)
    assert second.unfinished() == [0, 1]
    for number in (0, 1):
        second.discard(number, "the device-hour budget was spent")
    assert states(second) == ["FAIL", "FAIL"]
    assert second.unfinished() == []


# The journal


def test_the_journal_is_lines_of_json(tmp_path: Path) -> None:
    running = study(tmp_path)
    complete(running, begin(running).number, 0.5)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    assert len(lines) > 3
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_partial_journal_line_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    first = study(tmp_path)
    complete(first, begin(first).number, 0.5)
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code":4,"worker_id":"ab')
    for number in (1, 2):
        again = study(tmp_path)
        assert begin(again).number == number
        complete(again, number, 0.4)
    assert states(study(tmp_path)) == ["COMPLETE"] * 3


def test_stale_journal_lock_of_a_killed_process_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(seconds: float) -> None:
        raise AssertionError("Optuna waits for the lock")

    study(tmp_path)
    (tmp_path / f"{JOURNAL}.lock").symlink_to(tmp_path / JOURNAL)
    monkeypatch.setattr(time, "sleep", wait)
    begin(study(tmp_path))


def test_damaged_journal_raises_user_error(tmp_path: Path) -> None:
    running = study(tmp_path)
    begin(running)
    content = (tmp_path / JOURNAL).read_text().splitlines()
    content[1] = content[1][:20]
    (tmp_path / JOURNAL).write_text("\n".join(content) + "\n")
    with pytest.raises(UserError, match=f"journal {tmp_path}/{JOURNAL} cannot be read: .*Restore it"):
        study(tmp_path)
