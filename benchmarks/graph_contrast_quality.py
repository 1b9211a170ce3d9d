"""NDCG@20 of graph contrastive learning on ML-100K, each method and plain LightGCN with settings chosen on validation.

Every method has the same small grid of four settings: learning rates by weights (LightGCN: learning rates by weight
decays). Each is trained once on train, up to 120 epochs, and measured on validation every five epochs; the best one,
with its number of epochs, is then trained on train and validation over the seeds and tested once. One thread. What is
in the result file is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from harness import data_root, origin

from orchestrator import run
from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

FILE = Path(__file__).parent / "results" / "graph_contrast_quality.json"
EPOCHS, EVERY, PATIENCE = 120, 5, 20
SHAPE: Mapping[str, Any] = {"backbone": "lightgcn", "layers": 2, "batch_size": 2048}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "LightGCN": {},
    "SGL, edge drop": {"contrast": "sgl"},
    "SimGCL": {"contrast": "simgcl"},
    "LightGCL": {"contrast": "lightgcl"},
    "NCL": {"contrast": "ncl"},
}


def grid(name: str) -> Iterator[dict[str, Any]]:
    """The settings of a method that are compared on validation."""
    if name == "LightGCN":
        for lr, decay in itertools.product((3e-3, 1e-2), (2e-6, 1e-5)):
            yield {**SHAPE, "lr": lr, "weight_decay": decay}
        return
    for lr, weight in itertools.product((3e-3, 1e-2), (0.003, 0.01)):
        own = {"contrast_weight": weight, "contrast_temperature": 0.2}
        prototypes = {"prototype_weight": weight / 10} if name == "NCL" else {}
        yield {**SHAPE, **METHODS[name], "lr": lr, "weight_decay": 2e-6, **own, **prototypes}


def validate(settings: Mapping[str, Any]) -> tuple[float, int]:
    """The best NDCG@20 on validation, and its epoch."""
    runtime = Runtime(device=torch.device("cpu"), data=data_root(), seed=0, epochs=EPOCHS)
    workload = Recommender(Params(dataset="ml-100k", **settings), runtime)
    best = (0.0, 0)
    for epoch in range(1, EPOCHS + 1):
        workload.train_epoch(epoch)
        if epoch % EVERY == 0:
            best = max(best, (workload.evaluate("validation").metrics["ndcg_at_20"], epoch))
            if epoch - best[1] >= PATIENCE:
                break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in METHODS:
        row = results.setdefault(name, {"search": []})
        for settings in list(grid(name))[len(row["search"]) :]:
            value, epoch = validate(settings)
            row["search"].append({"settings": settings, "validation": value, "epochs": epoch})
            FILE.write_text(json.dumps(results, indent=1))
        best = max(row["search"], key=lambda each: float(each["validation"]))
        if len(row.get("values", ())) >= arguments.seeds:
            continue
        started = time.monotonic()
        plan = {**best["settings"], "epochs": best["epochs"], "refit": "only", "tracking": "none"}
        runs = [
            run("recommender", dataset="ml-100k", seed=seed, cpus_per_worker=1, **plan)
            for seed in range(arguments.seeds)
        ]
        values = [result.metrics["test/ndcg_at_20"] for result in runs]
        seconds = time.monotonic() - started
        row |= {"values": values, "mean": statistics.mean(values), "sd": statistics.stdev(values), "seconds": seconds}
        row |= {"settings": best["settings"], "epochs": best["epochs"], **origin()}
        FILE.write_text(json.dumps(results, indent=1))
    print("\n| method | NDCG@20, mean ± sd | validation | lr, weight, epochs |\n| --- | --- | --- | --- |")
    for name, row in results.items():
        chosen = [row["settings"]["lr"], row["settings"].get("contrast_weight", "-"), row["epochs"]]
        validation = max(each["validation"] for each in row["search"])
        print(f"| {name} | {row['mean']:.4f} ± {row['sd']:.4f} | {validation:.4f} | {', '.join(map(str, chosen))} |")


if __name__ == "__main__":
    main()
