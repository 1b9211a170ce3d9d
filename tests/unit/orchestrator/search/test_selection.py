"""Selection with noise: the contenders contain the best trial at the stated rate and exclude worse ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.search import selection, unit_values
from orchestrator.search.selection import LEVEL, Candidate, select
from orchestrator.search.unit_values import MOST, UnitValues
from tests.support.searching import ERROR, attributes, begin, complete, rows, study
from workloads.contract import Objective

GAIN = Objective("gain", "max")
SIMULATIONS = 200
LEAST = 1 - LEVEL - 2.6 * (LEVEL * (1 - LEVEL) / SIMULATIONS) ** 0.5
"""The bound that a coverage of 1 - LEVEL falls below in one of 200 tests."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "RESAMPLES", 500)


def measured(matrix: Any, seeds: list[tuple[float, ...]] | None = None, total: int | None = None) -> list[Candidate]:
    """Candidates, the best first, with the unit values ``matrix``, (trials, units)."""
    units = [UnitValues(total or matrix.shape[1], "ids", row) for row in matrix]
    found = [
        Candidate(trial, float(np.mean(seeds[trial])) if seeds else float(row.mean()), (0.0,), units[trial])
        for trial, row in enumerate(matrix)
    ]
    found = [Candidate(c.trial, c.value, seeds[c.trial] if seeds else (c.value,), c.units) for c in found]
    return sorted(found, key=lambda one: -one.value)


@pytest.mark.slow
@pytest.mark.parametrize("gaps", ["equal", "close", "far"])
def test_the_best_is_a_contender_as_often_as_promised_over_units(gaps: str) -> None:
    """Users differ much more than configurations, and each configuration suits some users better."""
    rng = np.random.default_rng(1)
    truth = {"equal": np.zeros(8), "close": -np.arange(8) * 0.01, "far": -np.arange(8) * 0.2}[gaps]
    inside, sizes = 0, []
    for _ in range(SIMULATIONS):
        users = rng.normal(0, 1, 200)
        found = select(measured(truth[:, None] + users + rng.normal(0, 0.2, (8, 200))), GAIN)
        assert found is not None
        assert found.contenders is not None
        inside += 0 in found.contenders
        sizes.append(len(found.contenders))
    assert inside / SIMULATIONS >= LEAST
    assert {"equal": np.mean(sizes) > 6, "close": 2 < np.mean(sizes) < 7, "far": np.mean(sizes) < 1.1}[gaps]


@pytest.mark.parametrize("units", [2, 3, 8])
def test_the_best_is_a_contender_as_often_as_promised_with_few_units(units: int) -> None:
    """A validation split of a few queries gives poor estimates of the variances."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(SIMULATIONS):
        found = select(measured(rng.normal(0, 1, units) + rng.normal(0, 0.2, (8, units))), GAIN)
        assert found is not None
        inside += 0 in (found.contenders or ())
    assert inside / SIMULATIONS >= LEAST
    far = select(measured(np.array([[1.0], [0.0]]) + rng.normal(0, 0.01, (2, units))), GAIN)
    assert far is not None
    assert far.contenders == (0,), "a large difference must still be significant"


@pytest.mark.parametrize("units", [True, False])
def test_the_best_is_a_contender_as_often_as_promised_over_seeds(units: bool) -> None:
    rng = np.random.default_rng(2)
    truth, inside = -np.arange(6) * 0.02, 0
    for _ in range(SIMULATIONS):
        seeds = [tuple(row) for row in truth[:, None] + rng.normal(0, 0.03, (6, 3))]
        means = np.array([np.mean(each) for each in seeds])
        found = measured(means[:, None] + rng.normal(0, 1, 100) + rng.normal(0, 0.01, (6, 100)), seeds)
        if not units:
            found = [Candidate(one.trial, one.value, one.seeds, None) for one in found]
        result = select(found, GAIN)
        assert result is not None
        assert result.contenders is not None
        assert (result.estimates[0].units_error is not None) == units
        inside += 0 in result.contenders
    assert inside / SIMULATIONS >= LEAST


def test_noise_shared_by_all_trials_does_not_hide_a_difference() -> None:
    """A user has the same level in both trials, so the difference is certain although the means are not."""
    users = np.random.default_rng(0).normal(0, 10, 100)
    noise = np.random.default_rng(1).normal(0, 0.01, (2, 100))
    result = select(measured(users + noise + np.array([[0.1], [0.0]])), GAIN)
    assert result is not None
    assert result.contenders == (0,)
    assert result.estimates[0].units_error == pytest.approx(0.001, rel=0.3)


def test_errors_are_those_of_all_units_not_of_the_kept_ones() -> None:
    matrix = np.random.default_rng(0).normal(0, 1, (3, 400))
    few, many = (select(measured(matrix, total=total), GAIN) for total in (400, 40_000))
    assert few is not None
    assert many is not None
    assert few.estimates[0].units_error == pytest.approx(10 * (many.estimates[0].units_error or 0))


def test_the_estimate_is_shrunk_by_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_contenders", lambda values, *of: [True] * len(values))
    rng = np.random.default_rng(3)
    errors, shrunk = [], []
    for _ in range(SIMULATIONS):
        truth = rng.normal(0, 0.1, 20)
        matrix = truth[:, None] + rng.normal(0, 1, (20, 100))
        found = measured(matrix)
        result = select(found, GAIN)
        assert result is not None
        errors.append(found[0].value - truth[result.best])
        shrunk.append(result.estimates[0].value - truth[result.best])
    assert np.mean(errors) > 0.08, "the best of noisy values must be biased"
    assert abs(np.mean(shrunk)) < np.mean(errors) / 2


def test_no_contenders_are_given_without_a_noise_estimate() -> None:
    values = [Candidate(trial, 1.0 - trial, (1.0 - trial,), None) for trial in range(3)]
    result = select(values, GAIN)
    assert result is not None
    assert (result.best, result.contenders, result.estimates) == (0, None, ())
    assert "no trial has several seeds" in result.text()
    assert select([], GAIN) is None


def test_equal_values_without_noise_between_them_are_both_contenders() -> None:
    matrix = np.random.default_rng(0).normal(0, 1, (1, 50)).repeat(2, axis=0)
    result = select(measured(matrix), GAIN)
    assert result is not None
    assert result.contenders == (0, 1)
    worse = select(measured(np.concatenate([matrix, matrix[:1] - 1])), GAIN)
    assert worse is not None
    assert worse.contenders == (0, 1)


def test_one_trial_is_the_only_contender() -> None:
    result = select(measured(np.random.default_rng(0).normal(0, 1, (1, 50))), GAIN)
    assert result is not None
    assert result.contenders == (0,)
    assert result.estimates[0].units_error is None  # it is computed from differences between trials
    assert result.text() == "Trials that cannot be separated from trial 0 (95%): none"


@pytest.mark.parametrize("units", [UnitValues(50, "others", np.zeros(50)), None])
@pytest.mark.parametrize("value", [-9.0, 9.0])
def test_only_a_trial_without_the_same_units_is_left_out(units: UnitValues | None, value: float) -> None:
    found = measured(np.random.default_rng(0).normal(0, 1, (3, 50)))
    result = select(sorted([*found, Candidate(3, value, (value,), units)], key=lambda one: -one.value), GAIN)
    assert result is not None
    assert result.left_out == (3,)
    estimate = result.estimate(3)
    assert estimate is not None
    assert estimate.units_error is None
    if value > 0:
        assert (result.best, result.contenders) == (3, None)
        assert result.text() == "No trial can be separated from trial 3: it lacks values of the units that others have"
    else:
        assert set(result.contenders or ()) == {0, 1, 2}
        assert result.text().endswith("; not compared, for lack of values of the same units: trial 3")


# Selection by the estimate


@pytest.mark.parametrize("maximise", [True, False])
@pytest.mark.parametrize(("trials", "units"), [(8, 100), (30, 100), (5, 20)])
def test_selection_by_estimate_has_less_regret_where_variances_differ(trials: int, units: int, maximise: bool) -> None:
    """The regret of the choice is compared with that of the largest value. With equal variances both are similar."""
    rng = np.random.default_rng(4)
    objective = GAIN if maximise else ERROR
    sign = 1.0 if maximise else -1.0
    regret = {"equal": np.zeros(2), "different": np.zeros(2)}
    for name, total in regret.items():
        for _ in range(SIMULATIONS):
            truth = rng.normal(0, units**-0.5, trials)
            spreads = np.ones(trials) if name == "equal" else rng.choice([0.3, 2.0], trials)
            values = truth[:, None] + rng.normal(0, 1, units) + rng.normal(0, 1, (trials, units)) * spreads[:, None]
            order = selection._shrunk(values.mean(axis=1), selection._own_variances(values) / units)[1]
            total += truth.max() - truth[[order[0], int(values.mean(axis=1).argmax())]]
        result = select(sorted(measured(sign * values), key=lambda one: -sign * one.value), objective)
        assert result is not None
        assert result.best == order[0], "select follows this order"
    ours, largest = regret["different"]
    assert ours < 0.9 * largest
    ours, largest = regret["equal"]
    assert ours < 1.05 * largest


def test_a_trial_far_ahead_wins_however_noisy() -> None:
    """The others are alike, so their spread does not measure this trial, which is 20 of its own errors ahead."""
    rng = np.random.default_rng(5)
    matrix = rng.normal(0, 0.1, (6, 100))
    matrix[3] = 2 + rng.normal(0, 1, 100)
    result = select(measured(matrix), GAIN)
    assert result is not None
    assert (result.best, result.contenders) == (3, (3,))
    assert result.estimates[0].value == pytest.approx(matrix[3].mean(), abs=0.02)


def test_each_trial_has_its_own_variance() -> None:
    rng = np.random.default_rng(6)
    spreads = np.array([0.5, 1.0, 2.0, 4.0])
    matrix = rng.normal(0, 10, 4000) + rng.normal(0, 1, (4, 4000)) * spreads[:, None]
    assert selection._own_variances(matrix) == pytest.approx(spreads**2, rel=0.15)
    assert len(set(selection._own_variances(matrix[:2]))) == 1, "two trials only have a variance of their difference"
    assert selection._own_variances(np.ones((3, 5))).tolist() == [0.0] * 3


def test_equal_constant_values_have_an_estimate_without_noise() -> None:
    result = select(measured(np.full((3, 50), 0.25)), GAIN)
    assert result is not None
    assert result.contenders == (0, 1, 2)
    assert [(one.value, one.units_error) for one in result.estimates] == [(0.25, 0.0)] * 3


# Selection from the journal and the file of units


def test_study_returns_contenders_and_the_cheapest_of_them_as_winner(tmp_path: Path) -> None:
    """Lower is better. By the values of 60 users the second trial is as good as the first, the third is not."""
    rng = np.random.default_rng(0)
    users = rng.normal(5, 1, 60)
    running = study(tmp_path, select="cheapest")
    for number, (shift, seconds) in enumerate([(0.0, 9.0), (0.001, 3.0), (2.0, 1.0)]):
        values = users + shift + rng.normal(0, 0.05, 60)
        trial = begin(running)
        about = attributes(float(values.mean())) | {"train_seconds": seconds}
        running.report(trial.seed_run, rows((27, about["best_value"])), about["best_value"], True, about)
        encoded = unit_values.encode({"id": np.arange(60), "error": values}, about["best_value"])
        assert encoded is not None
        unit_values.write(tmp_path, number, 0, encoded)
    with (tmp_path / unit_values.UNITS).open("a") as stream:
        stream.write('{"trial": 0, "seed"')  # a killed driver's last line
    found = running.selection()
    assert found is not None
    assert set(found.contenders or ()) == {0, 1}
    best, winner = running.best(), running.winner()
    assert best is not None
    assert winner is not None
    assert (best.number, winner.number) == (found.best, 1)
    assert "cannot be separated from trial" in found.text()
    assert study(tmp_path).winner() is not None


def test_of_two_objectives_the_first_selects(tmp_path: Path) -> None:
    """The winner is the cheapest contender of the first objective, whatever the values of the second."""
    running = study(tmp_path, [ERROR, Objective("x", "max")], trials=3, select="cheapest")
    users = np.random.default_rng(0).normal(5, 1, 60)
    for number, (shift, seconds) in enumerate([(0.0, 9.0), (0.001, 3.0), (2.0, 1.0)]):
        values = users + shift + np.random.default_rng(number).normal(0, 0.05, 60)
        about = attributes(float(values.mean()), x=float(number)) | {"train_seconds": seconds}
        encoded = unit_values.encode({"id": np.arange(60), "error": values}, about["best_value"])
        assert encoded is not None
        unit_values.write(tmp_path, number, 0, encoded)
        trial = begin(running)
        assert (
            running.report(trial.seed_run, rows((27, about["best_value"])), about["best_value"], True, about)
            == "complete"
        )
    found, winner = running.selection(), running.winner()
    assert found is not None
    assert winner is not None
    assert (set(found.contenders or ()), winner.number) == ({0, 1}, 1)


def test_a_selection_is_computed_once_for_each_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = study(tmp_path, trials=3, seeds=2)
    computed: list[int] = []
    monkeypatch.setattr(
        selection, "select", lambda found, objective: computed.append(len(found)) or select(found, objective)
    )
    for value in (0.1, 0.2):
        first = begin(running)
        complete(running, first.seed_run, value)
        complete(running, begin(running).seed_run, value)
        assert running.selection() is running.selection()
    encoded = unit_values.encode({"id": np.arange(3), "error": np.array([0.0, 0.1, 0.2])}, 0.1)
    assert encoded is not None
    unit_values.write(tmp_path, 0, 0, encoded)
    running.selection()
    assert computed == [1, 2, 2]


def test_repeated_seeds_are_averaged_by_unit(tmp_path: Path) -> None:
    running = study(tmp_path, seeds=2, trials=2)
    for _ in range(4):
        trial = begin(running)
        value = 1.0 + trial.number + 0.1 * trial.seed
        encoded = unit_values.encode({"id": np.arange(3), "error": value + np.array([-0.5, 0.0, 0.5])}, value)
        assert encoded is not None
        unit_values.write(tmp_path, trial.number, trial.seed, encoded)
        complete(running, trial.seed_run, value)
    one, _ = selection.candidates(running.trials, ERROR, unit_values.read(tmp_path))
    assert one.seeds == (1.0, 1.1)
    assert one.units is not None
    assert one.units.values.tolist() == pytest.approx([0.55, 1.05, 1.55])


@pytest.mark.parametrize(
    ("values", "value"),
    [([1.0, 2.0], 9.0), ([1.0], 1.0), ([1.0, float("nan")], 1.0), ([1.0, 2.0], None)],
)
def test_unusable_unit_values_are_not_encoded(values: list[float], value: float | None) -> None:
    assert unit_values.encode({"id": np.arange(len(values)), "error": np.array(values)}, value) is None


def test_the_same_units_of_each_trial_are_kept(tmp_path: Path) -> None:
    ids = np.array([f"user {number}" for number in range(MOST + 100)])
    for trial in range(2):
        values = np.arange(len(ids), dtype=np.float64) + trial
        encoded = unit_values.encode({"id": ids, "error": values}, float(values.mean()))
        assert encoded is not None
        unit_values.write(tmp_path, trial, 0, encoded)
    one, two = unit_values.read(tmp_path).values()
    assert one.values.shape == (MOST,)
    assert one.total == len(ids)
    assert one.ids == two.ids
    assert np.array_equal(two.values - one.values, np.ones(MOST))
