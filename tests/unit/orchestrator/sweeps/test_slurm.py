"""The options of sbatch, compared with values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources, Search, SweepSpec
from orchestrator.sweeps.slurm import header

pytestmark = pytest.mark.usefixtures("toy_workload")


def sweep(resources: dict[str, Any] | None = None, **search: Any) -> SweepSpec:
    return SweepSpec(
        workload="toy", plan=Plan(epochs=9), resources=Resources(**resources or {}), search=Search(**search)
    )


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize(
    ("resources", "search", "gpus", "expected"),
    [
        pytest.param({}, {"trials": 64}, 8, ["nodes=1", "gpus-per-node=8", "cpus-per-task=9"], id="one node is filled"),
        pytest.param({}, {"trials": 3}, 8, ["nodes=1", "gpus-per-node=3", "cpus-per-task=4"], id="few trials"),
        pytest.param(
            {"cpus_per_worker": 4}, {"trials": 64, "concurrency": 32}, 8,
            ["nodes=4", "gpus-per-node=8", "cpus-per-task=33"], id="four nodes of eight",
        ),
        pytest.param(
            {"gpus_per_worker": 0.25}, {"trials": 64}, 8, ["nodes=1", "gpus-per-node=8", "cpus-per-task=33"],
            id="four share a GPU",
        ),
        pytest.param(
            {"workers": 2}, {"trials": 8, "concurrency": 6}, 8, ["nodes=2", "gpus-per-node=6", "cpus-per-task=7"],
            id="two workers a trial",
        ),
        pytest.param({}, {"trials": 64}, 0, ["nodes=1", "cpus-per-task=9"], id="no GPU"),
        pytest.param(
            {}, {"trials": 1, "time_budget": 3600}, 0, ["nodes=1", "cpus-per-task=2", "time=01:15:00"], id="a budget"
        ),
    ],
)  # fmt: skip
def test_sbatch_options_of_a_sweep_match_its_trials_and_devices(
    resources: dict[str, Any], search: dict[str, Any], gpus: int, expected: list[str]
) -> None:
    assert options(header(sweep(resources, **search), gpus)) == expected


def test_sbatch_options_of_a_run_match_its_workers() -> None:
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(epochs=9), resources=Resources(workers=16))
    assert options(header(spec, 8)) == ["nodes=2", "gpus-per-node=8", "cpus-per-task=9"]
    assert header(spec, 8, wall_seconds=3000).splitlines()[-1] == "#SBATCH --time=01:30:00"
    assert "--time is not known" in header(spec, 8)


def test_sbatch_time_counts_trials_that_run_at_once() -> None:
    """800 s of eight trials, of which eight run at once, and a refit of 60 s: 1.5 x 160 s, and 15 minutes."""
    text = header(sweep({}, trials=8), 8, wall_seconds=860, refit_seconds=60)
    assert options(text)[-1] == "time=00:19:00"


def test_plan_slurm_command_prints_sbatch_options(home: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--slurm", "--gpus-per-node", "4", "sweep", "recommender", "--trials", "8", "--time-budget", "60"]
    assert app.run(words) == 0
    assert options(capsys.readouterr().out) == ["nodes=1", "gpus-per-node=4", "cpus-per-task=5", "time=00:16:00"]
