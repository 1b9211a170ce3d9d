"""Hours of training that the published image tables and figure 6.8 take on one H100, from its measured steps.

Steps of an epoch times epochs, models and seconds of a step (``gpu_day``: 32 pixels, batches of 256, bf16, compiled).
An image of 64 pixels counts as four. A smaller batch takes between its share of the measured step and the whole step.
Evaluation, the linear classifiers and compilation are not included. An H200 has the same peak of operations.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness import HERE, printed

from orchestrator.reproduce.catalog import all_published
from workloads.published import Figure, Table
from workloads.simclr.published.datasets import PRINTED

MEASURED = {"resnet18": "gpu-day-h100-7a6bf67.json", "resnet50": "gpu-day-h100-52cd3e4.json"}
"""Stored files that have the step of an encoder."""

BATCH = 256
"""Images of a measured step, each with two views."""


@dataclass(frozen=True)
class Model:
    """One model to train: its dataset, its number of seeds, and its settings."""

    dataset: str
    seeds: int
    epochs: int
    params: Mapping[str, Any]


def table_models(table: Table) -> Iterator[Model]:
    for block in table.places:
        for row in table.rows(*block):
            yield Model(row.where["dataset"], table.regime.seeds, row.settings.epochs, row.settings.params)


def figure_models(figure: Figure, dataset: str) -> Iterator[Model]:
    for panel in figure.panels:
        for line in panel.lines:
            for point in line.points:
                epochs = point.epochs or line.method.epochs
                yield Model(dataset, figure.seeds or figure.regime.seeds, epochs, line.method.params)


def step_seconds(encoder: str) -> float:
    rows = json.loads((HERE / "results" / MEASURED[encoder]).read_text())["rows"]
    (milliseconds,) = (row["step_ms"] for row in rows if row["name"] == f"{encoder}, {BATCH}, bf16 compiled")
    return float(milliseconds) / 1e3


def hours(model: Model) -> tuple[float, float]:
    """The least and the most hours of a model's seeds."""
    _, pixels, images, _ = PRINTED[model.dataset]
    pixels = model.params.get("view_size", pixels)
    batch = int(model.params.get("batch_size", BATCH))
    step = step_seconds(model.params["encoder"]) * (pixels / 32) ** 2
    steps = images // batch * model.epochs * model.seeds
    return steps * step * batch / BATCH / 3600, steps * step / 3600


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    published = all_published()
    planned: dict[str, list[Model]] = {}
    for name in (*(f"thesis-{number}" for number in ("6.4", "6.5", "6.6", "6.7")), "thesis-fig6.8-trained"):
        one = published[name]
        planned[name] = list(table_models(one) if isinstance(one, Table) else figure_models(one, "cifar-10"))
    printed(__file__)
    print("| table | dataset | models | hours |\n|---|---|---|---|")
    for name, models in planned.items():
        for dataset in dict.fromkeys(model.dataset for model in models):
            here = [model for model in models if model.dataset == dataset]
            least, most = (sum(values) for values in zip(*map(hours, here), strict=True))
            text = f"{least:.1f}" if most - least < 0.05 else f"{least:.1f} to {most:.1f}"
            print(f"| {name} | {dataset} | {sum(model.seeds for model in here)} | {text} |")


if __name__ == "__main__":
    main()
