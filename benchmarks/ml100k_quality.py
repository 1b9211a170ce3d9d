"""NDCG@20 on ML-100K's own split, mean and sample standard deviation over seeds, for the README's results table.

Every row goes through ``orchestrator.run``, in this process, one thread. ``--only`` selects rows by their beginning.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from harness import HERE, deviation, origin, read_results, write_results

from orchestrator import run

MF_LOG: dict[str, Any] = {"backbone": "mf", "lr": 5e-4, "weight_decay": 1e-5, "batch_size": 1024, "epochs": 100}
LGCN_CODE: dict[str, Any] = {**MF_LOG, "backbone": "lightgcn", "lr": 1e-3}

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "MF, published log's settings": ("peers .392 to .403; source .396", {**MF_LOG, "refit": "only"}),
    "MF, the same, 10% held out, no refit": ("the row above", {**MF_LOG, "refit": False}),
    "MF, chosen on validation": (
        "-",
        {"backbone": "mf", "lr": 2e-3, "weight_decay": 3e-5, "batch_size": 1024, "epochs": 140, "refit": "only"},
    ),
    "LightGCN, 1 layer, published code's settings": ("source .399; its code .397", {**LGCN_CODE, "refit": "only"}),
    "LightGCN, 2 layers, RecBole's learning rate and batch": (
        "RecBole .416, epoch chosen on test",
        {
            "backbone": "lightgcn",
            "layers": 2,
            "lr": 5e-3,
            "weight_decay": 1e-6,
            "batch_size": 2048,
            "epochs": 100,
            "refit": "only",
        },
    ),
    "LightGCN, 1 layer, chosen on validation": (
        "-",
        {"backbone": "lightgcn", "lr": 2e-3, "weight_decay": 5e-6, "batch_size": 1024, "epochs": 140, "refit": "only"},
    ),
    "LightGCN, 2 layers, chosen on validation": (
        "-",
        {
            "backbone": "lightgcn",
            "layers": 2,
            "lr": 3e-3,
            "weight_decay": 2e-6,
            "batch_size": 1024,
            "epochs": 110,
            "refit": "only",
        },
    ),
    "LightGCN, 1 layer, the thesis' text (batch 128)": (
        "source .399",
        {
            "backbone": "lightgcn",
            "lr": 1e-2,
            "lr_decay": 0.1,
            "lr_decay_every": 20,
            "weight_decay": 1e-5,
            "batch_size": 128,
            "epochs": 100,
            "refit": "only",
        },
    ),
}
"""Rows by name: the value to compare with, and the settings. ``refit=only`` trains on all 80,000 interactions for a
fixed number of epochs; only the last one is tested."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name begins so")
    arguments = parser.parse_args()
    file = HERE / "results" / "ml100k_quality.json"
    results = read_results(file)
    for name, (peer, settings) in ROWS.items():
        if not name.startswith(arguments.only):
            continue
        started = time.monotonic()
        runs = [
            run("recommender", dataset="ml-100k", seed=seed, tracking="none", cpus_per_worker=1, **settings)
            for seed in range(arguments.seeds)
        ]
        values = [result.metrics["test/ndcg_at_20"] for result in runs]
        results[name] = {
            "settings": settings,
            "values": values,
            "mean": statistics.mean(values),
            "sd": deviation(values),
            "read_against": peer,
            "seconds": time.monotonic() - started,
            **origin(),
        }
        write_results(file, results)
    print("\n| settings | NDCG@20, mean ± sd | read against | s |\n| --- | --- | --- | --- |")
    for name in ROWS:
        if row := results.get(name):
            print(f"| {name} | {row['mean']:.4f} ± {row['sd']:.4f} | {row['read_against']} | {row['seconds']:.0f} |")


if __name__ == "__main__":
    main()
