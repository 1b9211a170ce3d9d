"""Recorded learning curves: a refactor leaves them as they are. Run it to record anew; say why in the commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

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


def curve(settings: dict[str, Any]) -> list[list[float]]:
    """[train loss, validation NDCG@20, validation AUC] of each epoch on the synthetic set, one thread."""
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=EPOCHS)
    workload = Recommender(Params(**settings), runtime)
    rows = []
    for epoch in range(1, EPOCHS + 1):
        loss = workload.train_epoch(epoch)["loss"]
        seen = workload.evaluate("validation").metrics
        rows.append([loss, seen["ndcg_at_20"], seen["auc"]])
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps({name: curve(settings) for name, settings in CASES.items()}, indent=1) + "\n")
