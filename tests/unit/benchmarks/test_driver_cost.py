"""Reports under a simulated executor: rationed reports avoid waits and keep decisions and curves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.search import curves
from tests.support.commands import typed
from workloads import catalog


@pytest.fixture
def simulated(benchmarks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(benchmarks / "idle"))  # its workload is found as an installed one
    monkeypatch.setenv("PYTHONPATH", "")
    catalog.offered.cache_clear()
    yield importlib.import_module("simulated_sweep")
    catalog.offered.cache_clear()


def run(simulated: Any, folder: Path, at_once: int, trials: int, *, rationed: bool, overhead: float = 0.016) -> Any:
    asked = simulated.spec(trials, "random")
    with simulated.without_fsync():
        driver = simulated.driver(simulated.new_folder(folder, asked, f"s{at_once}{rationed}"), asked)
        executor = simulated.Executor(driver, at_once, overhead, rationed)
        executor.run()
    return executor


def told(executor: Any) -> list[tuple[Any, ...]]:
    """State, parameters, values and intermediate values of each trial in the study."""
    return [(t.state.name, t.params, t.values, t.intermediate_values) for t in executor.driver.study.trials]


@pytest.mark.faults  # long
def test_rationed_reports_avoid_waits_and_keep_every_value(simulated: Any, tmp_path: Path) -> None:
    usual = run(simulated, tmp_path, 128, 256, rationed=False)
    rationed = run(simulated, tmp_path, 128, 256, rationed=True)
    assert usual.share("interval") > 20, "the driver is too slow for a report a second of each trial"
    assert rationed.share("interval") < 2
    kept = curves.read(rationed.driver.folder.path, "validation/score")
    for trial in rationed.driver.study.trials:
        epochs = [epoch for epoch, _ in kept[trial.number, 0]]
        assert epochs == list(range(1, trial.user_attrs["epoch"] + 1))
        assert trial.user_attrs["epoch"] in (*rationed.driver.spec.plan.decide_at, 27)


def test_rationed_reports_of_sequential_trials_do_not_change_decisions(simulated: Any, tmp_path: Path) -> None:
    usual = run(simulated, tmp_path, 1, 30, rationed=False)
    rationed = run(simulated, tmp_path, 1, 30, rationed=True)
    assert told(rationed) == told(usual)
    assert {state for state, *_ in told(rationed)} == {"COMPLETE", "PRUNED"}


@pytest.fixture
def driver_cost(simulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    return importlib.import_module("driver_cost")


def test_driver_cost_measurements_run_with_few_trials(
    driver_cost: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurements do not include those that start processes of Ray Tune."""
    monkeypatch.setattr(driver_cost, "ASKS", 2)
    bench = SimpleNamespace(rows=[])
    driver_cost.costs(bench, tmp_path, 6, 20.0)
    driver_cost.waiting(bench, tmp_path, 2, 0.016, 0.001)
    rows = {row.what: row.ours for row in bench.rows}
    assert {f"2 {what}" for what in WAITS} <= rows.keys()
    assert all(value >= 0 for value in rows.values())


def test_sweep_commands_benchmark_runs_on_a_small_sweep(
    simulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process, on a small sweep. test_journal.py tests how much of the journal each command reads."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    simulated.filled(tmp_path, 6, 2, "s6").release("interrupted", 130)
    sweep_commands = importlib.import_module("sweep_commands")
    words = sweep_commands.commands(tmp_path, "s6")
    for command in ("ls", "status"):
        output = typed(tmp_path / "home", *words[command][3:])
        assert output.returncode == 0, output.stderr
        assert "s6" in output.stdout
    (*_, storage, name, space) = words["sweep --resume, before Ray"]
    left: list[Any] = []
    with pytest.raises(LookupError):
        importlib.import_module("resumed_sweep").resume(Path(storage), name, space, leave(left))
    assert len(left[0][2].trials) == 6


WAITS = ("trials wait", "trials wait at rungs", "trials wait at their ends", "processes wait for a next trial")


def leave(left: list[Any]) -> Any:
    """A replacement for connecting to Ray: store its arguments and raise LookupError."""

    def call(*parts: Any) -> None:
        left.append(parts)
        raise LookupError

    return call
