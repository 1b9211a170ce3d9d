"""Recorded learning curves, which a refactoring must not change: the recommender's here, the others' in encoders.py.

``python -m tests.curves.record`` records all of them again. Give the reason in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.curves import encoders
from tests.support.device_cases import CASES as DEVICE_CASES
from tests.support.device_cases import Case
from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

FILE = Path(__file__).with_name("recommender.json")
EPOCHS = 6
CASES: dict[str, dict[str, Any]] = {
    "mf": {"backbone": "mf", "lr": 0.01},
    "lightgcn": {"backbone": "lightgcn", "layers": 2, "lr": 0.01},
    "mf, decayed": {"backbone": "mf", "lr": 0.02, "lr_decay": 0.5, "lr_decay_every": 2, "batch_size": 512},
}


UNITS = FILE.with_name("recommender-units.json")
METRICS = ("ndcg_at_20", "auc")

LOSSES = FILE.with_name("losses.json")
LOSS_CASES = {
    name: case
    for name, case in DEVICE_CASES.items()
    if issubclass(case.workload, Recommender) and case.runtime.get("precision") != "bf16"
}
"""Losses, samplers and contrastive terms in small, whose losses of three epochs are recorded."""


def curve(settings: dict[str, Any]) -> tuple[list[list[float]], dict[str, list[float]]]:
    """The curve of one case on the synthetic set, with one thread.

    [train loss, validation NDCG@20, validation AUC] of each epoch, and both metrics of each user at the end.
    """
    settings = {"weight_decay": 1e-5, **settings}  # the default when the curves were recorded
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=EPOCHS)
    workload = Recommender(Params(**settings), runtime)
    rows = []
    for epoch in range(1, EPOCHS + 1):
        loss = workload.train_epoch(epoch)["loss"]
        seen = workload.evaluate("validation")
        rows.append([loss, *(seen.metrics[name] for name in METRICS)])
    return rows, {name: [round(value, 6) for value in seen.units[name].tolist()] for name in METRICS}


def losses(case: Case) -> list[float]:
    """The losses of three epochs, with one thread."""
    workload = case.build(device=torch.device("cpu"))
    return [float(f"{workload.train_epoch(epoch)['loss']:.8g}") for epoch in (1, 2, 3)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    curves = {name: curve(settings) for name, settings in CASES.items()}
    FILE.write_text(json.dumps({name: rows for name, (rows, _) in curves.items()}, indent=1) + "\n")
    UNITS.write_text(json.dumps({name: units for name, (_, units) in curves.items()}) + "\n")
    rows = (f" {json.dumps(name)}: {losses(case)}" for name, case in LOSS_CASES.items())
    LOSSES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    recorded = {name: case.curve() for name, case in encoders.CASES.items()}
    encoders.FILE.write_text(json.dumps(recorded, indent=1) + "\n")
