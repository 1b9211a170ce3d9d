"""The study: it asks for exactly so many trials, tells the sampler the truth, and forgets nothing when it dies."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from orchestrator.engine import Row
from orchestrator.errors import UserError
from orchestrator.plan import Plan
from orchestrator.search import REDUCTION, Study, Trial, rungs
from orchestrator.spec import Search, SweepSpec
from workloads.contract import Objective

ERROR = Objective("error", "min")
JOURNAL = "study.jsonl"


def space(trial: Any) -> dict[str, Any]:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return {"kind": kind, "lr": trial.suggest_float("lr", 0.0, 1.0), "dim": trial.suggest_int("dim", 1, 64)}


def study(folder: Path, objective: Objective = ERROR, *, epochs: int = 27, decide_at: Any = (), **search: Any) -> Study:
    spec = SweepSpec(
        workload="toy",
        plan=Plan(epochs=epochs, refit=True, decide_at=decide_at),
        seed=5,
        search=Search(**{"trials": 6, "sampler": "random"} | search),
    )
    return Study(folder, spec, objective, space)


def begin(study: Study) -> Trial:
    trial = study.next()
    assert trial is not None
    return trial


def rows(*pairs: tuple[int, float]) -> list[Row]:
    return [Row(epoch, 1.7e9 + epoch, {"train/loss": 1.0, "validation/error": value}) for epoch, value in pairs]


def complete(study: Study, number: int, value: float, **attributes: Any) -> str:
    return study.report(number, rows((study.spec.plan.epochs, value)), value, True, {"best_value": value, **attributes})


def at_rung(study: Study, number: int, epoch: int, value: float) -> str:
    return study.report(number, rows((epoch, value)), value, False, {"epoch": epoch})


def states(study: Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


# How many


def test_exactly_so_many_trials_are_asked_for(tmp_path: Path) -> None:
    running = study(tmp_path)
    numbers = [begin(running).number for _ in range(6)]
    assert numbers == [0, 1, 2, 3, 4, 5]
    assert running.next() is None
    assert running.running() == numbers


def test_every_end_counts(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,), trials=4)
    for value in (1.0, 2.0):
        at_rung(running, begin(running).number, 3, value)
    running.fail(begin(running).number, "train/loss is nan at epoch 2")
    running.cut(begin(running).number, "the time budget was spent")
    assert running.next() is None


def test_the_number_is_exact_over_any_restarts(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []
    while True:
        running = study(tmp_path)  # the process before this one has died
        started: list[Trial] = []
        while len(started) < 2 and (trial := running.next()):
            started.append(trial)
        if not started:
            break
        seen += [(trial.number, trial.resumed) for trial in started]
        complete(running, started[0].number, 1.0)
    assert [number for number, resumed in seen if not resumed] == [0, 1, 2, 3, 4, 5]
    # Each restart takes up first what the last one left running.
    assert seen == [(0, False), (1, False), (1, True), (2, False), (2, True), (3, False), (3, True), (4, False),
                    (4, True), (5, False), (5, True)]  # fmt: skip
    assert states(running) == ["COMPLETE"] * 6


def test_what_was_interrupted_comes_first_and_with_the_same_parameters(tmp_path: Path) -> None:
    first = study(tmp_path)
    asked = [begin(first) for _ in range(3)]
    complete(first, 1, 0.5)
    second = study(tmp_path)
    again = [begin(second) for _ in range(3)]
    assert [(trial.number, trial.resumed) for trial in again] == [(0, True), (2, True), (3, False)]
    assert [trial.params for trial in again[:2]] == [asked[0].params, asked[2].params]


def test_what_was_given_up_is_not_taken_up(tmp_path: Path) -> None:
    first = study(tmp_path)
    first.cut(begin(first).number, "the time budget was spent")
    assert begin(study(tmp_path)).number == 1
    assert first.trials[0].user_attrs == {
        "params": first.trials[0].params,
        "cut": True,
        "cause": "the time budget was spent",
    }


# The sampler


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_restart_does_not_change_what_the_sampler_says(sampler: str, tmp_path: Path) -> None:
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
def test_a_trial_that_died_while_it_was_asked_for_is_taken_up(
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
    assert (trial.number, trial.resumed) == (0, True)
    if reached == "ask":
        assert trial.params == whole
    assert trial.params["kind"] == whole["kind"]
    complete(again, 0, 1.0)
    best = again.best()
    assert best is not None
    assert best.user_attrs["params"] == trial.params


def test_another_seed_other_parameters(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 5), ("b", 6)):
        (tmp_path / name).mkdir()
        running = study(tmp_path / name)
        running.spec = running.spec.model_copy(update={"seed": seed})
        found.append(begin(running).params)
    assert found[0] != found[1]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "cmaes"])
def test_every_sampler_samples(sampler: str, tmp_path: Path) -> None:
    running = study(tmp_path, sampler=sampler, trials=11)
    for number in range(11):
        trial = begin(running)
        assert 0 <= trial.params["lr"] <= 1
        complete(running, number, trial.params["lr"])


# The truth


def test_optuna_is_told_how_each_trial_ended(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,), trials=4)
    numbers = [begin(running).number for _ in range(4)]
    assert at_rung(running, numbers[0], 3, 0.5) == "go on"
    assert at_rung(running, numbers[1], 3, 0.9) == "pruned"
    assert running.fail(numbers[2], "train/loss is nan at epoch 2") == "failed"
    assert complete(running, numbers[0], 0.25) == "complete"
    optuna_study = optuna.load_study(
        study_name=tmp_path.name,
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL))),
    )
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
def test_an_end_without_an_objective_is_a_failure(best: float | None, tmp_path: Path) -> None:
    running = study(tmp_path)
    assert running.report(begin(running).number, [], best, True, {}) == "failed"
    assert running.trials[0].user_attrs["cause"] == "the objective validation/error was never reported"


@pytest.mark.parametrize(("direction", "expected"), [("min", 1), ("max", 3)])
def test_the_best_is_among_the_complete_and_a_tie_goes_to_the_first(
    direction: Any, expected: int, tmp_path: Path
) -> None:
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


def test_of_none_that_is_complete_there_is_no_best(tmp_path: Path) -> None:
    running = study(tmp_path)
    running.fail(begin(running).number, "diverged")
    assert running.best() is None


# Rungs


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 9, 50, 81, 1000])
def test_rungs_are_below_the_budget_and_a_reduction_apart(epochs: int) -> None:
    found = rungs(epochs, "asha")
    assert all(1 <= rung < epochs for rung in found)
    assert all(later == REDUCTION * earlier for earlier, later in pairwise(found))
    assert bool(found) is (epochs > 1)
    assert rungs(epochs, "none") == ()


@pytest.mark.parametrize("direction", ["min", "max"])
def test_at_each_rung_the_weak_are_stopped(direction: Any, tmp_path: Path) -> None:
    """Asynchronous halving by its definition: promoted is who belongs to the best 1/REDUCTION of a rung so far,
    and of fewer than REDUCTION the best one."""
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


def test_between_rungs_nobody_is_stopped(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,))
    for value in (0.1, 0.2, 0.3):
        at_rung(running, begin(running).number, 3, value)
    last = begin(running).number
    assert running.report(last, rows((1, 99.0), (2, 99.0)), 99.0, False, {}) == "go on"
    assert at_rung(running, last, 3, 99.0) == "pruned"


def test_the_last_epoch_is_an_end_and_no_rung(tmp_path: Path) -> None:
    running = study(tmp_path, decide_at=(3,))
    for value in (0.1, 0.2, 0.3):
        at_rung(running, begin(running).number, 3, value)
    last = begin(running).number
    assert running.report(last, rows((3, 99.0)), 99.0, True, {}) == "complete"


def test_rungs_are_remembered_over_a_restart(tmp_path: Path) -> None:
    first = study(tmp_path, decide_at=(3,))
    for value in (0.1, 0.2, 0.3, 0.4):
        at_rung(first, begin(first).number, 3, value)
    ended = [t.number for t in first.trials if t.state == TrialState.PRUNED]
    assert ended
    second = study(tmp_path, decide_at=(3,))
    taken_up = []
    while (trial := second.next()) and trial.resumed:
        taken_up.append(trial.number)
    assert not set(taken_up) & set(ended), "what was pruned stays pruned"
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


# The journal


def test_the_journal_is_lines_of_json(tmp_path: Path) -> None:
    running = study(tmp_path)
    complete(running, begin(running).number, 0.5)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    assert len(lines) > 3
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_half_a_line_that_a_killed_process_left_is_no_harm(tmp_path: Path) -> None:
    first = study(tmp_path)
    complete(first, begin(first).number, 0.5)
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code":4,"worker_id":"ab')
    for number in (1, 2):
        again = study(tmp_path)
        assert begin(again).number == number
        complete(again, number, 0.4)
    assert states(study(tmp_path)) == ["COMPLETE"] * 3


def test_a_lock_that_a_killed_process_left_keeps_nobody_waiting(tmp_path: Path) -> None:
    study(tmp_path)
    (tmp_path / f"{JOURNAL}.lock").symlink_to(tmp_path / JOURNAL)
    begun = time.monotonic()
    begin(study(tmp_path))
    assert time.monotonic() - begun < 5


def test_a_journal_that_can_not_be_read(tmp_path: Path) -> None:
    running = study(tmp_path)
    begin(running)
    content = (tmp_path / JOURNAL).read_text().splitlines()
    content[1] = content[1][:20]
    (tmp_path / JOURNAL).write_text("\n".join(content) + "\n")
    with pytest.raises(UserError, match=f"journal {tmp_path}/{JOURNAL} can not be read: .*Restore it"):
        study(tmp_path)
