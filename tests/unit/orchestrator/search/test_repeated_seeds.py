"""Repeated seeds: a trial has their mean value, only the first is pruned, and any failure fails the trial."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from orchestrator.search.study import Study, Trial
from tests.support.searching import at_rung, begin, complete, rows, states, study, sweep


def three(folder: Path, **asked: Any) -> Study:
    return study(folder, **{"seeds": 3, "trials": 2} | asked)


def drain(running: Study) -> list[Trial]:
    """All seed runs that can start now."""
    found = []
    while (trial := running.next()) is not None:
        found.append(trial)
    return found


def seed_runs(trials: list[Trial]) -> list[tuple[int, int, int]]:
    return [(trial.seed_run, trial.number, trial.seed) for trial in trials]


def test_further_seeds_begin_when_the_first_has_reached_its_end(tmp_path: Path) -> None:
    running = three(tmp_path)
    first = drain(running)
    assert seed_runs(first) == [(0, 0, 0), (3, 1, 0)]
    assert not running.exhausted()
    assert complete(running, 0, 0.3) == "complete"
    more = drain(running)
    assert seed_runs(more) == [(1, 0, 1), (2, 0, 2)]
    assert [trial.params for trial in more] == [first[0].params] * 2
    assert states(running) == ["RUNNING", "RUNNING"]


def test_value_of_a_configuration_is_the_mean_over_its_seeds(tmp_path: Path) -> None:
    running = three(tmp_path, trials=1)
    begin(running)
    complete(running, 0, 0.3, best_epoch=4, x=1.0)
    drain(running)
    complete(running, 2, 0.8, best_epoch=9, x=3.0)
    assert running.running() == [1]
    complete(running, 1, 0.1, best_epoch=5, x=8.0)
    (trial,) = running.trials
    assert trial.value == pytest.approx(fmean([0.3, 0.1, 0.8]))
    about = trial.user_attrs
    assert [about[f"seed_{seed}"]["values"] for seed in range(3)] == [[0.3], [0.1], [0.8]]
    assert about["best_metrics"] == pytest.approx({"validation/error": 0.4, "validation/x": 4.0})
    assert (about["best_epoch"], about["best_value"], about["train_seconds"]) == (5, pytest.approx(0.4), 3.0)
    assert running.exhausted()


@pytest.mark.parametrize("having", [(0,), (1, 2)])
def test_a_metric_that_not_every_seed_has_at_its_best_epoch_has_no_mean(
    having: tuple[int, ...], tmp_path: Path
) -> None:
    running = three(tmp_path, trials=1)
    begin(running)
    for seed in range(3):
        complete(running, seed, 0.3, **({"x": 1.0} if seed in having else {}))
        drain(running)
    (trial,) = running.trials
    assert trial.user_attrs["best_metrics"] == pytest.approx({"validation/error": 0.3})


def test_best_trial_has_the_best_mean_not_the_best_single_seed(tmp_path: Path) -> None:
    running = three(tmp_path)
    for number, values in enumerate([(0.0, 0.9, 0.9), (0.5, 0.5, 0.5)]):
        for seed, value in enumerate(values):
            assert begin(running).seed_run == 3 * number + seed
            complete(running, 3 * number + seed, value)
    best = running.best()
    assert best is not None
    assert best.number == 1


def test_seeds_are_the_same_for_every_configuration() -> None:
    repeated, single = sweep(seeds=3), sweep()
    assert [repeated.trial(4, {}, seed).seed for seed in range(3)] == [
        repeated.trial(9, {}, seed).seed for seed in range(3)
    ]
    assert len({repeated.trial(4, {}, seed).seed for seed in range(3)}) == 3
    assert repeated.trial(4, {}, 0).seed == repeated.seed
    assert single.trial(4, {}).seed != single.trial(9, {}).seed


def test_only_the_first_seed_is_stopped_and_only_its_rungs_count(tmp_path: Path) -> None:
    running = three(tmp_path, decide_at=(3,), trials=4)
    begin(running)
    assert at_rung(running, 0, 3, 0.5) == "go on"
    complete(running, 0, 0.5)
    drain(running)
    for seed_run in (1, 2):
        assert at_rung(running, seed_run, 3, 99.0) == "go on"
    assert running.trials[0].intermediate_values == {3: 0.5}
    assert at_rung(running, 3, 3, 0.9) == "pruned"
    assert drain(running) == [], "a stopped configuration has no further seeds"
    assert states(running)[:2] == ["RUNNING", "PRUNED"]


def test_further_seed_is_not_pruned_though_later_trials_are_better(tmp_path: Path) -> None:
    running = study(tmp_path, seeds=2, trials=7, scheduler="median", decide_at=(3,))
    begin(running)
    assert at_rung(running, 0, 3, 0.9) == "go on"
    complete(running, 0, 0.9)
    last = begin(running)
    for number in range(1, 7):
        begin(running)
        assert at_rung(running, 2 * number, 3, 0.1) == "go on"
        complete(running, 2 * number, 0.1)
        complete(running, begin(running).seed_run, 0.1)
    assert states(running) == ["RUNNING"] + ["COMPLETE"] * 6
    assert at_rung(running, last.seed_run, 3, 0.9) == "go on"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_that_fails_fails_its_configuration(seed: int, tmp_path: Path) -> None:
    running = three(tmp_path)
    assert seed_runs(drain(running)) == [(0, 0, 0), (3, 1, 0)]
    if seed:
        complete(running, 0, 0.1)
    if seed == 2:
        drain(running)
    assert running.fail(seed, "train/loss is nan at epoch 2") == "failed"
    assert running.trials[0].user_attrs["cause"] == f"train/loss is nan at epoch 2 (seed {seed})"
    assert running.running() == [3], "its other seeds must be stopped"
    assert drain(running) == []
    assert [trial.number for trial in running.failed()] == [0]
    complete(running, 3, 0.5)
    assert seed_runs(drain(running)) == [(4, 1, 1), (5, 1, 2)]


def test_an_end_without_an_objective_fails_the_configuration(tmp_path: Path) -> None:
    running = three(tmp_path, trials=1)
    begin(running)
    complete(running, 0, 0.5)
    drain(running)
    assert running.report(1, [], None, True, {}) == "failed"
    assert states(running) == ["FAIL"]


@pytest.mark.parametrize("ended", [(), (0,), (0, 1), (0, 2), (0, 1, 2)])
def test_a_restart_loses_and_doubles_no_seed(ended: tuple[int, ...], tmp_path: Path) -> None:
    values = {0: 0.3, 1: 0.1, 2: 0.8}
    first = three(tmp_path, trials=1)
    params = begin(first).params
    for seed_run in ended:
        complete(first, seed_run, values[seed_run], best_epoch=2 + seed_run)
        drain(first)
    second = three(tmp_path, trials=1)
    assert second.unfinished() == [seed_run for seed_run in values if seed_run not in ended] * (len(ended) < 3)
    done: list[int] = []
    while trial := second.next():
        assert trial.params == params
        complete(second, trial.seed_run, values[trial.seed], best_epoch=2 + trial.seed)
        done.append(trial.seed)
    assert done == [seed for seed in values if seed not in ended]
    (trial,) = second.trials
    assert trial.value == pytest.approx(0.4)
    assert trial.user_attrs["best_epoch"] == 3


def test_resume_completes_a_trial_whose_mean_was_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = three(tmp_path, trials=1)
    begin(first)
    complete(first, 0, 0.3)
    drain(first)
    complete(first, 1, 0.1)
    monkeypatch.setattr(first, "_conclude", lambda trial: None)
    complete(first, 2, 0.8)
    assert states(first) == ["RUNNING"]
    second = three(tmp_path, trials=1)
    assert second.next() is None
    assert states(second) == ["COMPLETE"]
    assert second.exhausted()


def test_discarding_a_seed_ends_the_configuration_with_all_its_seeds(tmp_path: Path) -> None:
    running = three(tmp_path, trials=1)
    begin(running)
    complete(running, 0, 0.3)
    running.next()
    assert running.unfinished() == [1, 2]
    running.discard(1, "the time budget was spent")
    assert running.unfinished() == []
    assert running.trials[0].user_attrs["cause"] == "the time budget was spent (seed 1)"
    assert running.exhausted()


def test_a_failed_configuration_is_tried_again_with_all_its_seeds(tmp_path: Path) -> None:
    running = three(tmp_path, trials=1)
    params = begin(running).params
    complete(running, 0, 0.3)
    running.fail(1, "the disk was full")
    running.retry_failed()
    again = begin(running)
    assert (again.number, again.seed, again.params) == (1, 0, params)
    complete(running, 3, 0.2)
    assert seed_runs(drain(running)) == [(4, 1, 1), (5, 1, 2)]


def test_rows_of_further_seeds_add_no_rung_values(tmp_path: Path) -> None:
    running = three(tmp_path, decide_at=(3, 9), trials=1)
    begin(running)
    running.report(0, rows((1, 0.9), (3, 0.5)), 0.5, False, {})
    complete(running, 0, 0.5)
    drain(running)
    running.report(1, rows((3, 0.1), (9, 0.05)), 0.05, False, {})
    assert running.trials[0].intermediate_values == {3: 0.5}
