"""Constraints: a trial that violates one does not win, and samplers use the constraint values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.report import trials
from orchestrator.search.constraints import Constraint, unknown_metric, violated
from orchestrator.search.ranking import front
from orchestrator.search.study import Study
from orchestrator.sweeps import winner
from tests.support.searching import ERROR, at_rung, attributes, begin, complete, rows, states, study, sweep
from workloads.contract import Objective


@pytest.mark.parametrize(
    ("text", "metric", "bound", "at_least"),
    [
        ("ece<=0.05", "ece", 0.05, False),
        (" recall_at_20 >= .3 ", "recall_at_20", 0.3, True),
        ("validation/x<=5e6", "x", 5e6, False),
        ("x>=-inf", "x", float("-inf"), True),
        ("params<=5e6", "parameters", 5e6, False),
        ("latency_ms<=50", "latency_ms", 50, False),
    ],
)
def test_constraint_text_is_parsed_and_can_be_written_back(
    text: str, metric: str, bound: float, at_least: bool
) -> None:
    assert Constraint.parse(text) == Constraint(metric, bound, at_least)
    assert Constraint.parse(str(Constraint.parse(text))) == Constraint.parse(text)


@pytest.mark.parametrize("text", ["", "x", "x<5", "x==5", "<=5", "x<=", "x<=five", "x<=nan", "x<=5<=6", "5<=x"])
def test_malformed_constraint_text_raises_user_error(text: str) -> None:
    with pytest.raises(UserError, match=r"constraint is not valid.*METRIC<=NUMBER"):
        Constraint.parse(text)


def ended(running: Study, error: float, **others: float) -> int:
    trial = begin(running)
    complete(running, trial.seed_run, error, **others)
    return trial.number


def test_best_trial_that_violates_no_constraint_wins(tmp_path: Path) -> None:
    running = study(tmp_path, constraint=("size<=10", "recall>=0.5"))
    ended(running, 0.1, size=11, recall=0.9)
    ended(running, 0.2, size=9, recall=0.4)
    ended(running, 0.4, size=10, recall=0.5)
    ended(running, 0.3, size=5, recall=0.6)
    best = running.best()
    assert best is not None
    assert best.number == 3
    assert [violated(trial) for trial in running.trials] == [["size<=10"], ["recall>=0.5"], [], []]
    assert [row["violates"] for row in trials.rows(running.trials, [ERROR], 1)] == [
        "size<=10", "recall>=0.5", None, None,
    ]  # fmt: skip
    again = study(tmp_path, constraint=("size<=10", "recall>=0.5")).best()
    assert again is not None
    assert again.number == 3, "the journal must have the constraint values"


@pytest.mark.parametrize("size", [10, 11])
def test_the_table_of_trials_says_what_they_violate_only_if_one_does(tmp_path: Path, size: int) -> None:
    running = study(tmp_path, constraint=("size<=10",))
    ended(running, 0.1, size=9)
    ended(running, 0.2, size=size)
    _, columns, cells = winner._ranking(trials.rows(running.trials, [ERROR], 1), running)
    assert ("violates" in columns) == (size > 10)
    assert [cell for row in cells for cell in row if cell == "size<=10"] == ["size<=10"] * (size > 10)


def test_best_is_none_without_a_feasible_trial(tmp_path: Path) -> None:
    running = study(tmp_path, constraint=("size<=10",))
    ended(running, 0.1, size=11)
    assert running.best() is None


def test_a_metric_that_validation_lacks_fails_the_trial(tmp_path: Path) -> None:
    running = study(tmp_path, constraint=("sice<=10",))
    trial = begin(running)
    assert complete(running, trial.seed_run, 0.1, size=9) == "failed"
    assert "size" in running.cause(trial.seed_run), "the closest metric is suggested"


def test_seconds_and_parameters_can_be_constrained(tmp_path: Path) -> None:
    running = study(tmp_path, trials=9, constraint=("train_seconds<=2", "params<=100", "latency_ms<=50"))
    for error, seconds, parameters, latency in (
        (0.1, 3.0, 50, 1),
        (0.2, 1.0, 200, 1),
        (0.3, 1.0, 50, 1),
        (0.1, 1, 1, 60),
    ):
        trial = begin(running)
        about = attributes(error) | {"train_seconds": seconds, "parameters": parameters, "latency_ms": latency}
        running.report(trial.seed_run, rows((27, error)), error, True, about)
    best = running.best()
    assert best is not None
    assert best.number == 2


def test_constraint_applies_to_the_mean_over_repeated_seeds(tmp_path: Path) -> None:
    running = study(tmp_path, seeds=2, constraint=("size<=10", "train_seconds<=1"))
    for sizes in ((8, 13), (8, 12)):
        for _ in range(2):
            trial = begin(running)
            complete(running, trial.seed_run, 0.1 if sizes[1] == 13 else 0.2, size=sizes[trial.seed])
    best = running.best()
    assert best is not None
    assert best.number == 1, "its mean size is 10"


def test_trial_that_violates_a_constraint_is_not_on_the_front(tmp_path: Path) -> None:
    several = [ERROR, Objective("size", "min")]
    running = study(tmp_path, several, constraint=("size>=2",))
    for error, size in ((0.1, 5.0), (0.5, 1.0), (0.3, 3.0)):
        ended(running, error, size=size)
    assert [trial.number for trial in front(running.trials, several)] == [0, 2]


@pytest.mark.parametrize(
    ("sampler", "trials", "learnt"), [("tpe", 30, 15), pytest.param("gp", 18, 8, marks=pytest.mark.faults)]
)
def test_samplers_suggest_more_feasible_values_with_a_constraint(
    sampler: str, trials: int, learnt: int, tmp_path: Path
) -> None:
    """The best values lie far above lr = .5, where the constraint is violated; suggestions stay near the border."""

    def feasible(name: str, *constraint: str) -> int:
        running = study(tmp_path / name, sampler=sampler, trials=trials, constraint=constraint)
        while trial := running.next():
            lr = trial.params["lr"]
            complete(running, trial.seed_run, 1 - lr, lr_seen=lr)
        assert states(running) == ["COMPLETE"] * trials
        return sum(trial.params["lr"] <= 0.6 for trial in running.trials[-learnt:])

    assert feasible("with", "lr_seen<=0.5") >= feasible("without") + learnt // 4


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_samplers_accept_pruned_trials_without_constraint_values(sampler: str, tmp_path: Path) -> None:
    running = study(tmp_path, sampler=sampler, trials=16, decide_at=(3,), scheduler="asha", constraint=("size<=10",))
    while trial := running.next():
        number = trial.number
        if at_rung(running, trial.seed_run, 3, 1.0 + number) == "go on":
            complete(running, trial.seed_run, 1.0 + number, size=11 if number == 0 else 9)
        if number in (1, 2, 3) and states(running)[number] == "RUNNING":
            complete(running, trial.seed_run, 1.0 + number, size=9)
        if number == 0:
            for value, size in ((0.5, 9), (0.4, 12)):
                better = begin(running)
                complete(running, better.seed_run, value, size=size)
    assert states(running).count("PRUNED") > 8
    best = running.best()
    assert best is not None
    assert best.number == 1


def test_a_misspelt_metric_is_noticed_at_the_first_evaluation() -> None:
    constraints = [Constraint.parse("recal<=1"), Constraint.parse("params<=5")]
    assert unknown_metric(constraints, ["train/loss"]) is None, "not evaluated yet"
    found = unknown_metric(constraints, ["train/loss", "validation/recall"])
    assert "got 'recal'" in str(found)
    assert "recall" in str(found)
    assert unknown_metric(constraints, ["validation/recal"]) is None


def test_fingerprint_of_a_sweep_without_constraints_is_unchanged() -> None:
    changed: dict[str, Any] = {"constraint": ("size<=10",)}
    assert sweep().fingerprint() != sweep(**changed).fingerprint()
    assert sweep().fingerprint() == "ab10408e090389d0"
