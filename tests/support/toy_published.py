"""The toy workload with published results: tables, figures and a computation of the source ``toy``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq

from tests.support import toy
from workloads import catalog
from workloads.contract import Evaluation, Split
from workloads.published import Computation, Curve, Drawn, Figure, Line, Method, Panel, Point, Regime, Table, Trained

REGIME = Regime("toy", "parabola", "synthetic", space=f"{__file__}:space", named_by=("dataset",), seeds=2, trials=2)


class Params(toy.Params):
    dataset: str = "synthetic"


class Toy(toy.Toy):
    Params = Params
    objective = toy.Objective("error", "min")

    def evaluate(self, split: Split) -> Evaluation:
        found = super().evaluate(split)
        return Evaluation(found.metrics, found.units, {"slope": found.units})


def space(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2)}


def fourfold(run: Trained) -> dict[str, float]:
    return {"error": run.metrics["test/error"], "four": 4 * run.metrics["test/error"]}


def slopes(runs: Sequence[Trained]) -> Iterator[Curve]:
    errors = [pq.read_table(run.tables / "slope.parquet")["error"].to_pylist() for run in runs]
    yield Curve([0.0, 1.0, 2.0], errors[0], note=f"{len(runs)} runs")


def parabola(quick: bool) -> Drawn:
    x = [-1.0, 0.0, 1.0]
    return Drawn([Curve(x, [v * v for v in x], name="x²", panel="parabola")], {"size": [{"points": 3, "quick": quick}]})


FAST = Method({"lr": 0.1}, epochs=4)
LINES = (Line("steep", FAST, (Point(0.1, {"lr": 0.1}), Point(0.2, {"lr": 0.2}))),)
PUBLISHED = (
    Table(
        "toy-main", "Rates", "ours", REGIME,
        {"steep": Method({"lr": 0.2}, (), 4), "flat": Method({"lr": 0.01}, (), 4), "searched": Method({}, ("lr",), 4)},
        "error", blocks=(("synthetic",),), metrics=("error", "x"), lower=("error",), reference="flat",
    ),
    Table(
        "toy-missing", "Rates where no data is", "somebody, table 1", REGIME, {"steep": FAST}, "four",
        blocks=(("synthetic",), ("gowalla",)), metrics=("four",), measure=fourfold,
    ),
    Figure("toy-values", "Error over the rate", "ours", REGIME, "values", (Panel("lr", "error", LINES),)),
    Figure("toy-epochs", "Loss by epoch", "ours", REGIME, "epochs", (Panel("epoch", "train/loss", LINES),), seeds=1),
    Figure("toy-slopes", "Error by unit", "ours", REGIME, slopes, (Panel("unit", "error", LINES),)),
    Computation("toy-theory", "A parabola", "ours", "toy", parabola),
)  # fmt: skip
"""What the catalog's entry names."""

ENTRY = catalog.Entry(
    f"{__name__}:Params",
    f"{__name__}:Toy",
    "One number on a parabola.",
    f"{__name__}:PUBLISHED",
    data=("interactions",),
    predictor="../third_party/toy_predictor.py",
)
