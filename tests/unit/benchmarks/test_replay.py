"""Replays of recorded trials: the sample in the repository, the product's decisions, and what a recording leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.replay import compare, record
from benchmarks.replay.recording import ARRAYS, Recording, read
from orchestrator.search import unit_values
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

    def trial(self, params: dict[str, Any], seed: int) -> tuple[np.ndarray[Any, Any], float, float]:
        type(self).trainings -= 1
        if self.trainings < 0:
            raise KeyboardInterrupt
        random = np.random.default_rng([seed, params["candidates"]])
        return random.random((10, 7)).astype(np.float16), float(random.random()), 0.1


def test_an_interrupted_recording_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "Recorder", Simulated)
    monkeypatch.setattr(record, "PIECE", 4)
    one = record.record(tmp_path / "one.npz", "dns", 10, 2, 2, str)
    monkeypatch.setattr(Simulated, "trainings", 6)
    with pytest.raises(KeyboardInterrupt):
        record.record(tmp_path / "two.npz", "dns", 10, 2, 2, str)
    assert len(read(tmp_path / "two.npz").test) == 4, "what was recorded is in the file"
    monkeypatch.setattr(Simulated, "trainings", 10**6)
    record.record(tmp_path / "two.npz", "dns", 10, 2, 2, str)
    two = read(tmp_path / "two.npz")
    assert two.params == one.params
    assert one.repeat_units.shape == (3, 2, 10, 7)
    for name in ARRAYS:
        assert np.array_equal(getattr(two, name), getattr(one, name)), name
    with pytest.raises(SystemExit, match="another number of seeds"):
        record.record(tmp_path / "two.npz", "dns", 10, 2, 3, str)
    with pytest.raises(SystemExit, match="another search"):
        record.record(tmp_path / "two.npz", "bce", 10, 2, 2, str)


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median", "racing"])
def test_replays_decide_as_a_sweep_does(scheduler: Any, sample: Recording, tmp_path: Path) -> None:
    """One trial after the other, through the study of a sweep with its journal."""
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


def test_a_recording_leaves_no_run_that_could_be_selected() -> None:
    """The recorder evaluates test for each trial: it must not be able to write a run."""
    script = (
        "import sys, benchmarks.replay.record\n"
        "print([name for name in sys.modules if name.startswith(('orchestrator.tracking', 'orchestrator.runs', "
        "'orchestrator.registry', 'orchestrator.storage.records', 'mlflow', 'ray'))])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
