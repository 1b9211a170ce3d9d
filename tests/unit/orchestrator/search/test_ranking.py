"""Several objectives: each value is stored, the front matches its definition, the first one selects the best."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial

from orchestrator.search.ranking import front
from orchestrator.search.study import Study
from tests.support.searching import ERROR, at_rung, begin, complete, states, study
from workloads.contract import Objective

X = Objective("x", "max")


def told(folder: Path, *pairs: tuple[float, float]) -> Study:
    """A study of error (min) and x (max) with these values."""
    running = study(folder, [ERROR, X], trials=max(1, len(pairs)), decide_at=(3,))
    for number, (error, x) in enumerate(pairs):
        begin(running)
        assert complete(running, number, error, x=x) == "complete"
    return running


def front_of(study: Study) -> list[FrozenTrial]:
    return front(study.trials, study.objectives)


def unbeaten(*pairs: tuple[float, float]) -> set[int]:
    """By the definition: the pairs that no other pair dominates."""
    return {
        k
        for k, (error, x) in enumerate(pairs)
        if not any(e <= error and y >= x and (e, y) != (error, x) for e, y in pairs)
    }


def test_study_stores_value_and_direction_of_each_objective(tmp_path: Path) -> None:
    running = told(tmp_path, (0.25, 3.0))
    assert running.trials[0].values == [0.25, 3.0]
    assert [direction.name for direction in running.optuna_study.directions] == ["MINIMIZE", "MAXIMIZE"]


def test_an_objective_that_is_not_reported_fails_the_trial(tmp_path: Path) -> None:
    running = study(tmp_path, [ERROR, Objective("recal", "max")], trials=1)
    begin(running)
    assert complete(running, 0, 0.5, recall=0.2) == "failed"
    cause = running.trials[0].user_attrs["cause"]
    assert "got 'recal'; allowed: error, recall" in cause
    assert "Did you mean 'recall'?" in cause


def test_no_trial_is_stopped_with_two_objectives_and_no_scheduler(tmp_path: Path) -> None:
    running = study(tmp_path, [ERROR, X], trials=9, decide_at=(3,), scheduler="none")
    for number in range(9):
        begin(running)
        assert at_rung(running, number, 3, float(number)) == "go on"


def test_front_has_no_dominated_trial_and_is_ordered_by_first_objective(tmp_path: Path) -> None:
    pairs = [(0.5, 1.0), (0.1, 0.2), (0.1, 0.1), (0.9, 0.9), (0.3, 0.7), (0.3, 0.7), (0.9, 5.0)]
    found = [trial.number for trial in front_of(told(tmp_path, *pairs))]
    assert set(found) == unbeaten(*pairs) == {0, 1, 4, 5, 6}
    assert found == [1, 4, 5, 0, 6], "the best by the first objective comes first"


@pytest.mark.parametrize("seed", range(4))
def test_front_of_random_trials_matches_the_definition(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    pairs = [(draw.randint(0, 6) / 6, draw.randint(0, 6) / 6) for _ in range(25)]
    assert {trial.number for trial in front_of(told(tmp_path, *pairs))} == unbeaten(*pairs)


def test_front_of_one_objective_is_the_trials_with_the_best_value(tmp_path: Path) -> None:
    running = study(tmp_path, trials=3)
    for number, value in enumerate((0.5, 0.1, 0.1)):
        begin(running)
        complete(running, number, value)
    assert [trial.number for trial in front_of(running)] == [1, 2]


def test_best_trial_is_chosen_by_the_first_objective(tmp_path: Path) -> None:
    best = told(tmp_path, (0.5, 9.0), (0.1, 1.0), (0.1, 7.0)).best()
    assert best is not None
    assert best.number == 1


def test_warm_start_trials_do_not_displace_trials_from_the_front(tmp_path: Path) -> None:
    earlier = told(tmp_path / "earlier", (0.0, 9.0))
    lesson = earlier.trials[0]
    lesson.user_attrs["warm_from"] = "earlier/0"
    running = study(tmp_path / "now", [ERROR, X], trials=1)
    running.add_earlier([lesson])
    begin(running)
    complete(running, 1, 0.5, x=1.0)
    assert [trial.number for trial in front_of(running)] == [1]


def test_each_objective_is_averaged_over_seeds(tmp_path: Path) -> None:
    running = study(tmp_path, [ERROR, X], trials=1, seeds=2)
    begin(running)
    complete(running, 0, 0.2, x=1.0)
    begin(running)
    complete(running, 1, 0.4, x=4.0)
    assert states(running) == ["COMPLETE"]
    assert running.trials[0].values == pytest.approx([0.3, 2.5])
