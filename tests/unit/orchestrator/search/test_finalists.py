"""Finalists: the best trials are repeated once the search is over, and the mean of their seeds decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.report import trials
from orchestrator.search import unit_values
from orchestrator.search.ranking import REPEAT, repeats
from orchestrator.search.study import Study
from tests.support.searching import ERROR, at_rung, begin, complete, states, study, sweep


def searched(folder: Path, *values: float, **asked: Any) -> Study:
    running = study(folder, **{"trials": len(values), "finalists": 2, "finalist_seeds": 3} | asked)
    for value in values:
        complete(running, begin(running).seed_run, value, best_epoch=10)
    return running


def test_the_best_are_repeated_with_their_parameters_and_other_seeds(tmp_path: Path) -> None:
    running = searched(tmp_path, 0.3, 0.1, 0.2)
    assert not running.exhausted()
    further = [begin(running) for _ in range(4)]
    assert [trial.repeat_of for trial in further] == [1, 1, 2, 2]
    assert [trial.params for trial in further] == [running.trials[n].user_attrs["params"] for n in (1, 1, 2, 2)]
    seeds = {running.spec.trial(trial.origin, trial.params).seed for trial in further}
    assert len(seeds | {running.spec.trial(n, {}).seed for n in range(3)}) == 7
    assert running.next() is None
    assert running.exhausted()


@pytest.mark.parametrize("is_ahead", [True, False])
def test_only_repeats_start_when_no_new_trials_are_allowed(is_ahead: bool, tmp_path: Path) -> None:
    """The trial that was asked ahead does not start, and repeats are not asked ahead."""
    running = study(tmp_path, trials=9 if is_ahead else 8, sampler="tpe", finalists=8, finalist_seeds=3)
    runs = [begin(running) for _ in range(8)]
    running.ask_ahead()
    for trial in runs:
        complete(running, trial.seed_run, 0.1 * (1 + trial.number))
    repeated = []
    while (next_one := running.next(fresh=False)) is not None:
        repeated.append(next_one.repeat_of)
        running.ask_ahead()
    assert repeated == [number for number in range(8) for _ in range(2)]
    assert running.exhausted(fresh=False)
    if is_ahead:
        assert states(running)[8] == "RUNNING"
        assert begin(running).number == 8


def test_finalists_are_chosen_by_estimate_not_by_observed_value(tmp_path: Path) -> None:
    """The lowest error is that of the noisiest trial, which is not a finalist."""
    running = study(tmp_path, trials=6, finalists=2, finalist_seeds=2)
    rng = np.random.default_rng(0)
    for number, (value, spread) in enumerate(
        [(0.95, 9.0), (1.0, 0.1), (1.05, 0.1), (1.1, 0.1), (1.9, 0.1), (2.5, 0.1)]
    ):
        noise = rng.normal(0, spread, 100)
        encoded = unit_values.encode({"id": np.arange(100), "error": value + noise - noise.mean()}, value)
        assert encoded is not None
        unit_values.write(tmp_path, number, 0, encoded)
        complete(running, begin(running).seed_run, value)
    assert [begin(running).repeat_of for _ in range(2)] == [1, 2]


def test_repeats_start_only_after_the_last_trial_has_ended(tmp_path: Path) -> None:
    running = study(tmp_path, trials=2, finalists=2, finalist_seeds=2)
    first, last = begin(running), begin(running)
    complete(running, first.seed_run, 0.1)
    assert running.next() is None
    assert not running.exhausted()
    complete(running, last.seed_run, 0.2)
    assert begin(running).repeat_of == 0


def test_winner_is_the_finalist_with_the_best_mean_over_seeds(tmp_path: Path) -> None:
    """The luckiest trial is worse on other seeds."""
    running = searched(tmp_path, 0.10, 0.12, 0.3, 0.4, 0.5)
    best = running.best()
    assert best is not None
    assert best.number == 0
    for value in (0.18, 0.17, 0.11, 0.12):
        complete(running, begin(running).seed_run, value, best_epoch=20)
    winner, found = running.winner(), running.selection()
    assert winner is not None
    assert found is not None
    assert (winner.number, found.best) == (1, 1)
    assert set(found.contenders or ()) == {0, 1}, "with three seeds each they are close"
    result = running.result(winner)
    assert result["best_value"] == pytest.approx((0.12 + 0.11 + 0.12) / 3)
    assert result["best_epoch"] == 20, "the median"
    assert result["best_metrics"]["validation/error"] == pytest.approx(result["best_value"])
    rows = trials.rows(running.trials, [ERROR], 1)
    assert [row.get(REPEAT) for row in rows] == [None] * 5 + [0, 0, 1, 1]
    assert len(trials.over_seeds(winner, running.trials)) == 3


def test_a_repeat_is_never_pruned_and_never_wins(tmp_path: Path) -> None:
    running = searched(tmp_path, 0.1, 0.2, 0.3, scheduler="asha", decide_at=(3, 9))
    further = begin(running)
    assert at_rung(running, further.seed_run, 3, 99.0) == "go on"
    complete(running, further.seed_run, 0.01)
    best = running.best()
    assert best is not None
    assert best.number == 0


@pytest.mark.parametrize(("others", "best"), [((0.6, 0.7), 1), ((0.4, 0.6), 0)])
def test_constraints_are_about_the_mean_over_seeds(others: tuple[float, float], best: int, tmp_path: Path) -> None:
    """x<=0.5 holds in the first run of trial 0."""
    running = study(tmp_path, trials=3, finalists=2, finalist_seeds=3, constraint=("x<=0.5",))
    for value in (0.1, 0.2, 0.3):
        complete(running, begin(running).seed_run, value, x=0.4)
    for x in (*others, 0.1, 0.1):
        further = begin(running)
        complete(running, further.seed_run, 0.1 if further.repeat_of == 0 else 0.2, x=x)
    winner, found, first = running.winner(), running.selection(), running.best()
    assert winner is not None
    assert found is not None
    assert first is not None
    assert winner.number == found.best == first.number == best
    assert (0 in {one.trial for one in found.estimates}) == (best == 0)
    rows = trials.rows(running.trials, [ERROR], 1)
    assert rows[0]["violates"] == ("x<=0.5" if best else None)


def test_repeats_are_not_doubled_after_the_driver_was_killed(tmp_path: Path) -> None:
    first = searched(tmp_path, 0.3, 0.1, 0.2)
    complete(first, begin(first).seed_run, 0.1)
    begin(first)
    second = study(tmp_path, trials=3, finalists=2, finalist_seeds=3)
    left = []
    while trial := second.next():
        left.append(trial)
        complete(second, trial.seed_run, 0.2)
    assert [trial.repeat_of for trial in left] == [1, 2, 2]
    assert len(second.trials) == 7
    assert len(repeats(second.trials, second.trials[1])) == 2


def test_more_trials_may_bring_another_finalist(tmp_path: Path) -> None:
    first = searched(tmp_path, 0.3, 0.1, finalist_seeds=2)
    while trial := first.next():
        complete(first, trial.seed_run, 0.2)
    second = study(tmp_path, trials=3, finalists=2, finalist_seeds=2)
    complete(second, begin(second).seed_run, 0.15)
    assert begin(second).repeat_of == 4
    assert second.next() is None
    assert [trial.user_attrs.get(REPEAT) for trial in second.trials] == [None, None, 1, 0, None, 4]


def test_failed_repeat_is_not_replaced_but_can_be_retried(tmp_path: Path) -> None:
    running = searched(tmp_path, 0.1, 0.2, finalist_seeds=2)
    running.fail(begin(running).seed_run, "train/loss is nan at epoch 2")
    complete(running, begin(running).seed_run, 0.2)
    assert running.exhausted()
    assert states(running) == ["COMPLETE"] * 2 + ["FAIL", "COMPLETE"]
    assert running.retry_failed() == 1
    assert begin(running).repeat_of == 0


@pytest.mark.parametrize("restart", [False, True])
def test_repeats_do_not_count_at_the_rungs_of_later_trials(restart: bool, tmp_path: Path) -> None:
    """There are six trials and four repeats of the best two. The seventh trial is 2nd of 7: in the best third."""
    asked: dict[str, Any] = {"scheduler": "asha", "decide_at": (3, 9), "finalists": 2, "finalist_seeds": 3}
    running = study(tmp_path, trials=6, **asked)
    for value in (0.8, 0.7, 0.6, 0.5, 0.3, 0.1, 0.11, 0.12, 0.13, 0.14):
        number = begin(running).seed_run
        assert at_rung(running, number, 3, value) == "go on"
        complete(running, number, value)
    running.spec = running.spec.model_copy(update={"search": running.spec.search.model_copy(update={"trials": 7})})
    if restart:
        running = study(tmp_path, trials=7, **asked)
    assert at_rung(running, begin(running).seed_run, 3, 0.2) == "go on"


def test_no_trial_is_repeated_without_a_complete_trial(tmp_path: Path) -> None:
    running = study(tmp_path, trials=1, finalists=2)
    running.fail(begin(running).seed_run, "train/loss is nan at epoch 2")
    assert running.next() is None
    assert running.exhausted()
    assert running.winner() is None


def test_finalists_are_repeated_only_when_final_repeats_are_allowed(tmp_path: Path) -> None:
    """No new trial may start, but repeats may."""
    running = study(tmp_path, trials=9, finalists=2, finalist_seeds=2)
    for value in (0.2, 0.1):
        complete(running, begin(running).seed_run, value)
    assert running.next(fresh=False, final=False) is None
    assert running.exhausted(fresh=False, final=False)
    assert not running.exhausted(fresh=False)
    for _ in range(2):
        trial = running.next(fresh=False)
        assert trial is not None
        assert trial.repeat_of is not None
        complete(running, trial.seed_run, 0.1)
    assert running.next(fresh=False) is None
    assert running.exhausted(fresh=False)


def test_finalist_seeds_change_the_fingerprint_only_with_finalists() -> None:
    assert sweep(finalist_seeds=5).fingerprint() == sweep().fingerprint()
    assert len({sweep(finalists=2, finalist_seeds=seeds).fingerprint() for seeds in (2, 3)}) == 2
