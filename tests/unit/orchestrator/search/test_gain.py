"""The expected gain of further trials: comparison with simulations, and sweeps that end by it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState, create_trial

from orchestrator.search import unit_values
from orchestrator.search.gain import LEAST, _best_of, expected_gain
from orchestrator.search.selection import Estimate, Selection
from orchestrator.search.study import Study
from tests.support.searching import begin, complete, study
from workloads.contract import Objective

SCORE = Objective("error", "max")


@pytest.mark.parametrize(("share", "trials", "best"), [(1.0, 1, 0.5), (0.3, 8, 1.0), (1.0, 30, -2.0), (0.5, 100, 3.5)])
def test_expected_gain_of_the_best_draw_matches_simulation(share: float, trials: int, best: float) -> None:
    rng = np.random.default_rng(0)
    values = [0.0, *(sign * 1.0 for sign in (-1, 1) for _ in range(10))]  # median 0, spread 1
    scale = np.sqrt(10 / 12 * (1 + np.pi / 42))
    drawn = scale * rng.standard_t(12, (20_000, trials))
    draws = np.where(rng.random((20_000, trials)) < share, drawn, -np.inf).max(axis=1)
    simulated = float(np.maximum(0, draws - best).mean())
    assert _best_of(values, share, best, 0.0, trials) == pytest.approx(simulated, abs=0.02)


@pytest.mark.parametrize("ended", [20, 40])
@pytest.mark.parametrize("trials", [1, 8])
def test_mean_expected_gain_is_close_to_the_true_gain_over_many_sweeps(ended: int, trials: int) -> None:
    """The mean is near the true gain: above it if all trials are alike, below it if only those of the last half are."""
    rng = np.random.default_rng(0)
    sweeps = rng.normal(size=(1000, ended))
    further = rng.normal(size=(1000, 100, trials)).max(axis=2)
    for best, least, most in ((sweeps.max(axis=1), 1.0, 1.4), (sweeps[:, ended // 2 :].max(axis=1), 0.6, 1.0)):
        expected = [
            _best_of(half, 1.0, b, 0.0, trials) for half, b in zip(sweeps[:, ended // 2 :].tolist(), best.tolist())
        ]
        true = np.maximum(0, further - best[:, None]).mean()
        assert least < np.mean(expected) / true < most


def test_expected_gain_is_zero_when_noise_explains_the_spread() -> None:
    source = random.Random(0)
    values = [source.gauss(0, 0.1) for _ in range(200)]
    assert _best_of(values, 1.0, max(values), 0.2, 50) == 0.0
    assert _best_of(values, 1.0, max(values), 0.01, 50) > 0.0
    assert _best_of([], 0.0, 0.0, 0.1, 50) == 0.0


@pytest.mark.parametrize(("direction", "sign"), [("max", 1.0), ("min", -1.0)])
def test_expected_gain_is_computed_for_min_and_max_objectives(direction: Any, sign: float) -> None:
    source = random.Random(1)
    values = [source.gauss(1.0, 0.2) for _ in range(2 * LEAST)]
    trials = [create_trial(state=TrialState.COMPLETE, value=sign * value) for value in values]
    selection = Selection(0, (0,), (Estimate(0, sign * max(values), 0.01, None),))
    gain = expected_gain(trials, Objective("error", direction), selection, 5)
    assert gain is not None
    assert gain.gain == pytest.approx(_best_of(values[LEAST:], 1.0, max(values), 0.01, 5))
    assert gain.noise == pytest.approx(0.01 * 2**0.5)


def test_expected_gain_is_none_without_noise_or_with_few_trials() -> None:
    trials = [create_trial(state=TrialState.COMPLETE, value=float(i)) for i in range(LEAST)]
    known = Selection(0, (0,), (Estimate(0, 1.0, 0.01, None),))
    assert expected_gain(trials, SCORE, Selection(0), 5) is None
    assert expected_gain(trials, SCORE, None, 5) is None
    assert expected_gain(trials[1:], SCORE, known, 5) is None
    assert expected_gain(trials, SCORE, known, 5) is not None


def run(folder: Path, noise: float, trials: int = 40, **options: Any) -> Study:
    """A sweep whose trials differ by 0.1, on 50 units with standard deviation ``noise``."""
    running = study(folder, SCORE, scheduler="none", trials=trials, until_gain=4, **options)
    rng = np.random.default_rng(0)
    while (trial := running.next()) is not None:
        values = rng.normal(0, 0.1) + rng.normal(0, noise, 50)
        encoded = unit_values.encode({"id": np.arange(50), "v": values}, float(values.mean()))
        assert encoded
        unit_values.write(folder, trial.number, 0, encoded)
        complete(running, trial.number, float(values.mean()))
    assert running.exhausted()
    return running


def test_a_sweep_ends_when_only_noise_is_to_be_gained(tmp_path: Path) -> None:
    noisy = run(tmp_path / "noisy", 2.0)
    assert LEAST <= len(noisy.trials) < 40
    assert noisy.gain is not None
    assert noisy.gain.is_noise
    assert len(run(tmp_path / "clear", 1e-4).trials) == 40


def test_sweep_ended_by_gain_stays_ended_on_resume_until_trials_are_added(tmp_path: Path) -> None:
    ended = len(run(tmp_path, 2.0).trials)
    again = study(tmp_path, SCORE, scheduler="none", trials=40, until_gain=4)
    assert again.next() is None
    assert again.exhausted()
    more = study(tmp_path, SCORE, scheduler="none", trials=50, until_gain=4)
    assert begin(more).number == ended


def test_a_sweep_whose_metrics_are_constant_ends_by_its_first_estimate(tmp_path: Path) -> None:
    """Further trials gain nothing, even though there is no noise."""
    running = study(tmp_path, SCORE, scheduler="none", trials=2 * LEAST, until_gain=4)
    while (trial := running.next()) is not None:
        encoded = unit_values.encode({"id": np.arange(4), "v": np.full(4, 0.5)}, 0.5)
        assert encoded
        unit_values.write(tmp_path, trial.number, 0, encoded)
        complete(running, trial.number, 0.5)
    assert len(running.trials) == LEAST
    assert running.is_ended_by_gain
    assert str(running.gain) == "expected gain of 4 more trials 0, noise 0"


def test_gain_is_not_estimated_while_the_noise_is_unknown(tmp_path: Path) -> None:
    running = study(tmp_path, SCORE, scheduler="none", trials=LEAST + 1, until_gain=4)
    for number in range(LEAST):
        assert not running.lacks_noise
        complete(running, begin(running).seed_run, number / 10)
    begin(running)
    assert running.lacks_noise
    assert running.gain is None
    assert not running.is_ended_by_gain
