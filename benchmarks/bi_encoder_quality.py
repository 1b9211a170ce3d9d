"""Spearman and Pearson on STS-B of the packaged MiniLM, without and with fine-tuning: means over seeds.

Every row goes through ``orchestrator.run``: the epoch is selected on the dev part, and test is evaluated once. Finished
runs are not repeated, so the script can be interrupted; ``--only`` selects rows by their beginning. The learning rates
of the cross-encoder and of the other two poolings were compared on dev with ``--seeds 1``, and the best one has three.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from harness import HERE, data_root, machine, mean_text, origin, printed, read_results, write_results

from orchestrator import run
from workloads.bi_encoder.params import Params
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime

RESULTS = HERE / "results" / "bi_encoder_quality.json"
KEPT = ("spearman", "pearson")
ZERO_SHOT = "as it comes"

RECIPE: dict[str, Any] = {"lowest_cosine": 0.0, "lr": 2e-5, "epochs": 1}

CHOSEN: dict[str, Any] = {"lowest_cosine": 0.1, "lr": 1e-4, "epochs": 2}

CROSS: dict[str, Any] = {"scoring": "cross", "epochs": 4}

ROWS: dict[str, dict[str, Any]] = {
    "mse, score 0 at cosine 0, 1 epoch, lr 2e-5 (sentence-transformers' recipe)": RECIPE,
    "the same in fp32": {**RECIPE, "precision": "fp32"},
    "mse, score 0 at cosine 0.1, 2 epochs, lr 1e-4 (chosen on dev)": CHOSEN,
    "first token: the same": {**CHOSEN, "pooling": "cls"},
    "first token: lr 5e-5": {**CHOSEN, "pooling": "cls", "lr": 5e-5},
    "first token: lr 2e-4": {**CHOSEN, "pooling": "cls", "lr": 2e-4},
    "maximum: the same": {**CHOSEN, "pooling": "max"},
    "maximum: lr 5e-5": {**CHOSEN, "pooling": "max", "lr": 5e-5},
    "maximum: lr 2e-5": {**CHOSEN, "pooling": "max", "lr": 2e-5},
    "cosent, temperature 0.2, 2 epochs, lr 5e-5": {"loss": "cosent", "temperature": 0.2, "lr": 5e-5, "epochs": 2},
    "mse, score 0 at cosine -1, 5 epochs, lr 2e-5 (the design note)": {"lowest_cosine": -1.0, "lr": 2e-5, "epochs": 5},
    "cross-encoder, at most 4 epochs, lr 2e-5": {**CROSS, "lr": 2e-5},
    "cross-encoder, at most 4 epochs, lr 5e-5": {**CROSS, "lr": 5e-5},
    "cross-encoder, at most 4 epochs, lr 1e-4": {**CROSS, "lr": 1e-4},
    "cross-encoder, at most 10 epochs, lr 1e-4": {**CROSS, "lr": 1e-4, "epochs": 10},
}
"""Names of rows and their settings, in addition to :data:`COMMON`."""

COMMON: dict[str, Any] = {"dataset": "stsb", "encoder": "minilm", "precision": "bf16"}


def zero_shot() -> dict[str, float]:
    """The encoder without training, on both parts."""
    runtime = Runtime(device=torch.device("cpu"), data=data_root("stsb"), seed=0, epochs=1)
    workload = BiEncoder(Params(dataset="stsb", encoder="minilm"), runtime)
    result = {split: workload.evaluate(split).metrics for split in ("validation", "test")}
    return {f"{split}/{name}": result[split][name] for split in result for name in KEPT}


def trained(settings: dict[str, Any], seed: int, threads: int) -> dict[str, Any]:
    started = time.monotonic()
    done = run("bi_encoder", seed=seed, tracking="none", cpus_per_worker=threads, **{**COMMON, **settings})
    values = {f"{split}/{name}": done.metrics[f"{split}/{name}"] for split in ("validation", "test") for name in KEPT}
    return {**values, "seconds": time.monotonic() - started, **origin()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose name begins so")
    args = parser.parse_args()
    results = read_results(RESULTS) or {"machine": machine()}
    if ZERO_SHOT not in results:
        results[ZERO_SHOT] = zero_shot()
    for name, settings in ROWS.items():
        runs = results.setdefault(name, {"settings": {**COMMON, **settings}, "runs": {}})["runs"]
        for seed in range(args.seeds):
            if name.startswith(args.only) and str(seed) not in runs:
                runs[str(seed)] = trained(settings, seed, args.threads)
                write_results(RESULTS, results)
    printed(__file__)
    print("| MiniLM-L6 on STS-B | seeds | dev Spearman | test Spearman | test Pearson |\n|---|---|---|---|---|")
    columns = ("validation/spearman", "test/spearman", "test/pearson")
    print(f"| {ZERO_SHOT} | | " + " | ".join(f"{results[ZERO_SHOT][column]:.4f}" for column in columns) + " |")
    for name in ROWS:
        runs = list(results[name]["runs"].values())
        if runs:
            print(
                f"| {name} | {len(runs)} | "
                + " | ".join(mean_text([run[one] for run in runs]) for one in columns)
                + " |"
            )


if __name__ == "__main__":
    main()
