"""Reports under a simulated executor: trials do not wait, and what is decided and kept is what it was."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.search import curves
from workloads.catalog import catalog

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "idle"))  # its workload, as an installed one
    monkeypatch.setenv("PYTHONPATH", "")
    catalog.cache_clear()
    yield importlib.import_module("simulated_sweep")
    catalog.cache_clear()


def run(simulated: Any, folder: Path, at_once: int, trials: int, *, rationed: bool, overhead: float = 0.016) -> Any:
    asked = simulated.spec(trials, "random")
    with simulated.without_fsync():
        driver = simulated.driver(simulated.new_folder(folder, asked, f"s{at_once}{rationed}"), asked)
        executor = simulated.Executor(driver, at_once, overhead, rationed)
        executor.run()
    return executor


def told(executor: Any) -> list[tuple[Any, ...]]:
    """What the study says of each trial."""
    return [(t.state.name, t.params, t.values, t.intermediate_values) for t in executor.driver.study.trials]


@pytest.mark.faults  # long
def test_many_trials_do_not_wait_and_lose_no_value(simulated: Any, tmp_path: Path) -> None:
    usual = run(simulated, tmp_path, 128, 256, rationed=False)
    rationed = run(simulated, tmp_path, 128, 256, rationed=True)
    assert usual.share("interval") > 20, "half of the driver's time is not enough for a report a second"
    assert rationed.share("interval") < 2
    kept = curves.read(rationed.driver.folder.path, "validation/score")
    for trial in rationed.driver.study.trials:
        epochs = [epoch for epoch, _ in kept[trial.number, 0]]
        assert epochs == list(range(1, trial.user_attrs["epoch"] + 1))
        assert trial.user_attrs["epoch"] in (*rationed.driver.spec.plan.decide_at, 27)


def test_one_at_a_time_the_decisions_are_those_of_a_report_a_second(simulated: Any, tmp_path: Path) -> None:
    usual = run(simulated, tmp_path, 1, 30, rationed=False)
    rationed = run(simulated, tmp_path, 1, 30, rationed=True)
    assert told(rationed) == told(usual)
    assert {state for state, *_ in told(rationed)} == {"COMPLETE", "PRUNED"}
