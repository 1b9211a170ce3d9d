"""Replays of recorded trials: the sample recording, a sweep's decisions, samplers, and resumed recordings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json

from benchmarks.replay import compare, record, samplers
from benchmarks.replay.recording import ARRAYS, Recording, read
from orchestrator.search import selection, unit_values
from orchestrator.search.schedulers import rungs
from tests.support.searching import attributes, begin, complete, rows, study
from workloads.contract import Objective

SAMPLE = Path(compare.__file__).with_name("sample.npz")


@pytest.fixture(scope="module")
def sample() -> Recording:
    return read(SAMPLE)


def test_a_recording_is_read_as_it_was_written(sample: Recording, tmp_path: Path) -> None:
    sample.write(tmp_path / "copy.npz")
    again = read(tmp_path / "copy.npz")
    assert (again.about, again.params) == (sample.about, sample.params)
    for name in ARRAYS:
        assert np.array_equal(getattr(again, name), getattr(sample, name)), name
    assert len(sample.params) == len(sample.test) == len(sample.units) == 40
    assert sample.repeat_units.shape[0] == len(sample.repeated) > 0
    assert set(sample.about["distributions"]) == set(sample.params[0])


class Simulated:
    """Recorder of random values, a pure function of parameters and seed, that is interrupted after some trainings."""

    trainings = 10**6

    def __init__(self, name: str) -> None:
        self.name = name

    def trial(self, params: dict[str, Any], seed: int, values: int | None = None) -> record.Run:
        type(self).trainings -= 1
        if self.trainings < 0:
            raise KeyboardInterrupt
        random = np.random.default_rng([seed, params["candidates"]])
        return random.random((11, 7))[:values].astype(np.float16), float(random.random()), 0.1


def test_an_interrupted_recording_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "Recorder", Simulated)
    monkeypatch.setattr(record, "PIECE", 4)
    one = record.record(tmp_path / "one.npz", "dns", 10, 2, 2, str)
    monkeypatch.setattr(Simulated, "trainings", 6)
    with pytest.raises(KeyboardInterrupt):
        record.record(tmp_path / "two.npz", "dns", 10, 2, 2, str)
    assert len(read(tmp_path / "two.npz").test) == 4, "trials recorded before the interruption are in the file"
    monkeypatch.setattr(Simulated, "trainings", 10**6)
    record.record(tmp_path / "two.npz", "dns", 10, 2, 2, str)
    two = read(tmp_path / "two.npz")
    assert two.params == one.params
    assert one.repeat_units.shape == (3, 2, 11, 7)
    for name in ARRAYS:
        assert np.array_equal(getattr(two, name), getattr(one, name)), name
    about = {key: value for key, value in one.about.items() if key != "epochs"}
    older = replace(one, about=about, units=one.units[:, 1:], repeat_units=one.repeat_units[:, :, 1:])
    older.write(tmp_path / "older.npz")
    longer = record.record(tmp_path / "older.npz", "dns", 10, 2, 2, str)
    assert longer.epochs == (2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50)
    assert all(np.array_equal(getattr(longer, name), getattr(one, name)) for name in ARRAYS)
    replace(older, units=older.units + 1).write(tmp_path / "older.npz")
    with pytest.raises(SystemExit, match="trial 0 has other values than the recording at epoch 5"):
        record.record(tmp_path / "older.npz", "dns", 10, 2, 2, str)
    with pytest.raises(SystemExit, match="another number of seeds"):
        record.record(tmp_path / "two.npz", "dns", 10, 2, 3, str)
    with pytest.raises(SystemExit, match="another search"):
        record.record(tmp_path / "two.npz", "bce", 10, 2, 2, str)


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median", "racing"])
def test_replays_decide_as_a_sweep_does(scheduler: Any, sample: Recording, tmp_path: Path) -> None:
    """The reference runs one trial after another through a sweep's study with its journal."""
    epochs = sample.about["every"] * sample.units.shape[1]
    decide_at = rungs(epochs, scheduler)
    running = study(
        tmp_path, Objective("error", "max"), scheduler=scheduler, trials=40, epochs=epochs, decide_at=decide_at
    )
    for trial in range(40):
        number = begin(running).number
        best, verdict = -1, "go on"
        for index in range(sample.units.shape[1]):
            epoch = (index + 1) * sample.about["every"]
            best = index if best < 0 or sample.values[trial, index] > sample.values[trial, best] else best
            value = float(sample.values[trial, index])
            if epoch == epochs:
                complete(running, number, float(sample.values[trial].max()))
            elif epoch in decide_at:
                units = sample.units[trial, best].astype(np.float64)
                columns = {"id": np.arange(len(units)), "error": units}
                running.observe(number, epoch, unit_values.encode(columns, float(units.mean())))
                verdict = running.report(number, rows((epoch, value)), value, False, attributes(value, epoch, epoch))
                if verdict == "pruned":
                    break
    stopped = [trial.number for trial in running.trials if trial.state.name == "PRUNED"]
    whole = float(sample.seconds.sum()) * sample.units.shape[1]
    assert stopped
    assert compare.one(sample, scheduler, np.arange(40), whole, workers=1).stopped == stopped


def test_the_report_has_every_scheduler_and_selector(sample: Recording, tmp_path: Path) -> None:
    sets = {"BUDGETS": (2, 4), "CHOICE": 4, "WORKERS": 2}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sets.items():
            patch.setattr(compare, name, value)
        compare.main([str(SAMPLE), "--replays", "3", "--out", str(tmp_path)])
    text = (tmp_path / "replay-bce.md").read_text()
    assert all(f"| {name} |" in text for name in (*compare.SCHEDULERS, "largest value", "estimate", "mean over seeds"))


def test_a_recording_without_further_seeds_has_no_selectors(sample: Recording, tmp_path: Path) -> None:
    """An interrupted recording has no further seeds."""
    arrays = {name: getattr(sample, name)[:0] for name in ("repeated", "repeat_units", "repeat_test")}
    replace(sample, **arrays).write(tmp_path / "bce.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "BUDGETS", (4, 6))
        patch.setattr(compare, "WORKERS", 2)
        compare.main([str(tmp_path / "bce.npz"), "--replays", "3", "--out", str(tmp_path)])
    text = (tmp_path / "replay-bce.md").read_text()
    assert "| racing |" in text
    assert "selector" not in text


def test_unevenly_spaced_epochs_keep_their_training_time(sample: Recording) -> None:
    """The sample without its second value has equal device time, but no decision at the omitted epoch."""
    kept = [index for index in range(len(sample.epochs)) if index != 1]
    uneven = replace(
        sample, about=sample.about | {"epochs": [sample.epochs[index] for index in kept]}, units=sample.units[:, kept]
    )
    assert uneven.whole == pytest.approx(sample.whole)
    ends = [compare.one(each, "none", np.arange(40), 12 * sample.whole, workers=2).ends for each in (sample, uneven)]
    assert len(ends[0]) > 5
    assert ends[1] == [(pytest.approx(seconds, rel=1e-5), trial) for seconds, trial in ends[0]]


def test_contenders_contain_the_best_simulated_trial(sample: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contenders contain the best of equal trials with independent noise; distant trials are separated."""
    monkeypatch.setattr(selection, "RESAMPLES", 500)
    rng = np.random.default_rng(0)
    for gap, most in ((0.0, 24.0), (5.0, 1.1)):
        truth = gap * np.arange(30)
        units = np.zeros((30, 1, 200)) + truth[:, None, None] + rng.normal(0, 1, (30, 1, 200))
        simulated = replace(
            sample, about=sample.about | {"epochs": [50]}, units=units, test=truth, repeated=np.arange(30),
            repeat_units=units[:, None], repeat_test=truth[:, None],
        )  # fmt: skip
        for row in compare.coverage(simulated, 20).values():
            assert row["covered"] >= 0.9
            assert row["contenders"] <= most


def test_tpe_finds_better_trials_than_random_search(sample: Recording) -> None:
    """Simulates 400 trials of one parameter with the best value in the middle of its range."""
    rng = np.random.default_rng(0)
    params = [{"lr": float(value)} for value in np.exp(rng.uniform(np.log(1e-3), 0, 400))]
    values = np.array([-abs(np.log10(each["lr"]) + 1.5) for each in params])
    line = FloatDistribution(1e-3, 1.0, log=True)
    simulated = replace(
        sample, about=sample.about | {"distributions": {"lr": distribution_to_json(line)}, "epochs": [50]},
        params=params, units=np.repeat(values[:, None, None], 2, axis=2), test=values,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, "SAMPLERS", {name: samplers.SAMPLERS[name] for name in ("random", "tpe")})
        patch.setattr(samplers, "BUDGETS", (6, 24))
        found = samplers.compare(simulated, 6, 1)
    assert found["tpe"]["test"][-1] > found["random"]["test"][-1]
    used = samplers.play(simulated, samplers.SAMPLERS["tpe"], 24, seed=0)
    assert len(set(used)) == 24, "each trial must be used once"


def test_categories_and_log_scales_have_equal_distances() -> None:
    space = {"lr": FloatDistribution(0.01, 1.0, log=True), "dim": CategoricalDistribution([16, 32])}
    points = samplers.positions([{"lr": 0.01, "dim": 16}, {"lr": 1.0, "dim": 16}, {"lr": 0.01, "dim": 32}], space)
    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(1)
    assert np.linalg.norm(points[0] - points[2]) == pytest.approx(1)


@pytest.mark.slow
def test_recorder_does_not_import_modules_that_write_runs() -> None:
    """The recorder evaluates each trial on test, so it must not be able to write a run."""
    script = (
        "import sys, benchmarks.replay.record\n"
        "print([name for name in sys.modules if name.startswith(('orchestrator.tracking', 'orchestrator.runs', "
        "'orchestrator.registry', 'orchestrator.storage.records', 'mlflow', 'ray'))])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
