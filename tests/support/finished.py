"""Folders of finished runs and sweeps of the toy, written without training, for tests of listings and reports."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pyarrow as pa
import pyarrow.parquet as pq
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Search, SweepSpec
from orchestrator.search import unit_values
from orchestrator.search.journal import open_study
from orchestrator.search.ranking import REPEAT
from orchestrator.storage import records
from orchestrator.storage.records import RunFolder
from tests.support.toy import Params

PLAN = Plan(epochs=4, refit=True)
SPACE = {"lr": FloatDistribution(0.01, 0.2, log=True), "momentum": CategoricalDistribution([0.5, 0.9])}


def run(
    storage: Path,
    name: str,
    error: float,
    *,
    seed: int = 0,
    units: Sequence[float] | None = None,
    data: str = "d1",
    plan: Plan = PLAN,
    **params: Any,
) -> RunFolder:
    """A finished run whose error is ``error`` on validation and twice that on test."""
    spec = ExperimentSpec(workload="toy", params=Params(**params).model_dump(), plan=plan, seed=seed)
    asked = {"experiment": spec.model_dump(mode="json"), "options": {}}
    folder = records.create(storage, "run", "toy", asked, f"orchestrator run toy --seed={seed}", name)
    metrics = {"validation/error": error, "validation/x": 1.0, "test/error": 2 * error}
    _leave(folder.path, metrics, units)
    (folder.path / "environment.json").write_text(json.dumps({"data": data, "code": {}}))
    folder.update(objectives=[["error", "min"]])
    folder.release("finished", 0, run_id=f"mlflow-{name}", result={"metrics": metrics, "status": "finished"})
    return folder


def sweep(
    storage: Path,
    name: str,
    values: Sequence[Sequence[float] | None],
    *,
    seeds: int = 1,
    directions: Sequence[str] = ("min",),
    settled: bool = True,
    fixed: Mapping[str, Any] | None = None,
    cause: str = "train/loss is nan at epoch 2",
    repeat_of: Mapping[int, int] | None = None,
    spreads: Sequence[float] | None = None,
    violating: Container[int] = (),
) -> RunFolder:
    """A sweep with one trial per value: its objectives, or with repeated seeds the first of each; None: failed.

    ``repeat_of``: the finalists that trials repeat. ``spreads``: spread of each trial's values over 200 units.
    ``violating``: trials that violate the constraint x<=0.5.
    """
    spec = SweepSpec(
        workload="toy", fixed=dict(fixed or {}), plan=PLAN, search=Search(trials=len(values) + 1, seeds=seeds)
    )
    asked = {"sweep": spec.model_dump(mode="json"), "options": {}}
    folder = records.create(storage, "sweep", "toy", asked, "orchestrator sweep toy", name)
    folder.update(objectives=[["error", directions[0]], *([["x", d] for d in directions[1:]])])
    study = open_study(folder.path, ["minimize" if d == "min" else "maximize" for d in directions])
    for number, value in enumerate(values):
        trial = _trial(number, value, seeds, dict(fixed or {}), cause)
        trial.datetime_start = datetime.now() - timedelta(seconds=1)
        if number in (repeat_of or {}):
            trial.set_user_attr(REPEAT, (repeat_of or {})[number])
        if number in violating:
            trial.set_constraint("x<=0.5", 0.1)
        study.add_trial(trial)
    rng = np.random.default_rng(0)
    for number, spread in enumerate(spreads or ()):
        noise = rng.normal(0, spread, 200)
        value = values[number][0]  # type: ignore[index]
        encoded = unit_values.encode({"id": np.arange(200), "error": value + noise - noise.mean()}, value)
        assert encoded is not None
        unit_values.write(folder.path, number, 0, encoded)
    if not settled:
        return folder
    complete = [number for number, value in enumerate(values) if value is not None]
    best = min(complete, key=lambda number: study.get_trials(deepcopy=False)[number].values[0])
    metrics = {"validation/error": study.get_trials(deepcopy=False)[best].values[0], "test/error": 9.0}
    _leave(folder.path / "winner", metrics, None)
    (folder.path / "environment.json").write_text(json.dumps({"data": "d1", "code": {}}))
    result = {"metrics": metrics, "status": "finished", "best_trial": best, "trials": len(values), "model_uri": "m-1"}
    folder.release("finished", 0, result=result)
    return folder


def continue_sweep(folder: RunFolder, value: float) -> None:
    """What ``--resume --more-trials`` does with a finished sweep, until one more trial has ended with ``value``."""
    folder.acquire()
    study = open_study(folder.path)
    study.add_trial(_trial(len(study.trials), [value], 1, {}, ""))


def _trial(
    number: int, value: Sequence[float] | None, seeds: int, fixed: Mapping[str, Any], cause: str
) -> optuna.trial.FrozenTrial:
    params = {"lr": 0.01 * (number + 1), "momentum": 0.5 if number % 2 else 0.9}
    attributes: dict[str, Any] = {"params": {**params, **fixed}}
    if value is None:
        attributes["cause"] = cause
        return create_trial(state=TrialState.FAIL, params=params, distributions=SPACE, user_attrs=attributes)
    values = [sum(value) / len(value)] if seeds > 1 else list(value)
    attributes |= {"epoch": 4, "best_epoch": 3, "best_value": values[0], "train_seconds": 1.0}
    attributes["best_metrics"] = {"validation/error": values[0]}
    if seeds > 1:
        attributes |= {
            f"seed_{i}": {"values": [v], "best_metrics": {"validation/error": v}} for i, v in enumerate(value)
        }
    return create_trial(
        values=values, params=params, distributions=SPACE, user_attrs=attributes,
        intermediate_values={1: values[0] + 1, 3: values[0]} if len(values) == 1 else {},
    )  # fmt: skip


def _leave(folder: Path, metrics: Mapping[str, float], units: Sequence[float] | None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "outcome.json").write_text(json.dumps({"metrics": dict(metrics), "refitted": True, "epochs": 3}))
    if units is not None:
        table = {"id": np.arange(len(units)), "error": np.asarray(units)}
        pq.write_table(pa.table(table), folder / "validation_units.parquet")
