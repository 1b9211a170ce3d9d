"""Names and descriptions of runs in MLflow's UI."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Search, SweepSpec
from orchestrator.registry import intervals
from orchestrator.runs import description, worker
from workloads.recommender.params import Params


def test_run_name_in_mlflow_begins_with_its_settings() -> None:
    stamp = "20261123-113030-38e4"
    assert description.name(f"toy-{stamp}", "toy", "lr=0.2") == f"lr=0.2 ({stamp})"
    assert description.name("mine", "toy", "lr=0.2") == "mine"
    long = description.name(f"toy-{stamp}", "toy", "x" * 100)
    assert long == "x" * (description.NAME_CHARACTERS - 3) + f"... ({stamp})"


def test_described_settings_are_those_that_differ_from_defaults(toy_workload: str) -> None:
    spec = ExperimentSpec(workload="toy", params={"lr": 0.2, "momentum": 0.5}, plan=Plan(epochs=3), seed=0)
    assert description.run_settings(spec) == "lr=0.2 epochs=3"
    assert description.run_settings(spec.model_copy(update={"seed": 4})) == "lr=0.2 epochs=3 seed=4"
    plain = ExperimentSpec(workload="toy", params={}, plan=Plan(), seed=0)
    assert description.run_settings(plain) == "defaults"
    sweep = SweepSpec(workload="toy", fixed={"lr": 0.2}, search=Search(space="space"))
    assert description.sweep_settings(sweep) == "lr=0.2 sweep space"
    assert description.sweep_settings(sweep.model_copy(update={"fixed": {}})) == "sweep space"


def test_interval_half_width_is_that_of_a_mean_over_units(tmp_path: Path) -> None:
    values = [0.0, 1.0, 1.0, 0.0]
    worker.write_table({"id": range(5), "hit": [*values, math.nan], "auc": [0.5] * 5}, tmp_path / "units.parquet")
    half = intervals.half_width(tmp_path / "units.parquet", "hit", 0.5)
    assert half == pytest.approx(1.96 * pd.Series(values).std() / 2)
    assert intervals.half_width(tmp_path / "units.parquet", "hit", 0.6) is None, "it is not the mean of these units"
    assert intervals.half_width(tmp_path / "units.parquet", "recall", 0.5) is None
    assert intervals.half_width(tmp_path / "none.parquet", "hit", 0.5) is None


def test_settings_that_follow_from_others_are_left_out() -> None:
    """A record has every parameter; a name has only those that distinguish the run."""
    settings: list[dict[str, object]] = [
        {},
        {"sampler": "dns"},
        {"sampler": "dns", "candidates": 9},
        {"backbone": "ials", "dim": 16},
    ]
    for given in settings:
        spec = ExperimentSpec(workload="recommender", params=Params(**given).model_dump())
        text = " ".join(f"{name}={value}" for name, value in given.items())
        assert description.run_settings(spec) == (text or "defaults")
