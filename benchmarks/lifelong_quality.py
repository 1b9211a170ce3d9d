"""Lifelong retrieval on classic-ir and SciFact: methods beside L2R, averaged over sessions, means over seeds.

The rows and settings are those of ``orchestrator reproduce l2r-main`` and ``l2r-ablation``. A run that has been
measured is not repeated, so that the script can be stopped and started, and several share the work. Differences are
tested by a paired bootstrap over the test queries of all seeds, each query's values averaged over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import commit, data_root, machine

from orchestrator.results.statistics import over_units
from workloads.contract import Runtime
from workloads.data.cache import file_lock, replacing
from workloads.lifelong.params import Params
from workloads.lifelong.published import PUBLISHED
from workloads.lifelong.workload import Lifelong
from workloads.published import Row

RESULTS = Path(__file__).parent / "results" / "lifelong_quality.json"
TESTED = ("average_mrr_at_10", "average_recall_at_100")
SHOWN = (*TESTED, "average_success_at_5", "forgetting", "forward_transfer", "documents_embedded")


def trained(row: Row, seed: int, epochs: int, threads: int, steps: int | None) -> dict[str, Any]:
    """One run to its end; its values on test."""
    torch.set_num_threads(threads)
    runtime = Runtime(
        device=torch.device("cpu"), data=data_root("scifact"), seed=seed, epochs=epochs, precision="bf16",
        steps_per_epoch=steps,
    )  # fmt: skip
    started = time.monotonic()
    workload = Lifelong(Params(**row.settings.params), runtime)
    for epoch in range(1, epochs + 1):
        workload.train_epoch(epoch)
    found = workload.evaluate("test")
    sessions = {name: np.asarray(column).tolist() for name, column in found.tables["sessions"].items()}
    return {
        "metrics": dict(found.metrics), "sessions": sessions, "seconds": time.monotonic() - started,
        "units": {name: np.asarray(found.units[name]).round(6).tolist() for name in ("id", *TESTED)},
        "epochs": epochs, "steps": steps, "commit": commit(),
    }  # fmt: skip


def kept(key: str | None = None, value: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that was measured; with ``value`` after adding it."""
    RESULTS.parent.mkdir(exist_ok=True)
    with file_lock(RESULTS.with_suffix(".lock")):
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"machine": machine(), "runs": {}}
        if key is not None:
            results["runs"][key] = value
            with replacing(RESULTS) as file:
                file.write((json.dumps(results) + "\n").encode())
    found: dict[str, Any] = results["runs"]
    return found


def shown(table: Any, dataset: str, runs: dict[str, Any], seeds: int) -> None:
    """A block as Markdown: means ± deviations, and the test of each row against the reference."""
    done = {
        row.method: [runs[key] for seed in range(seeds) if (key := name(table, row, seed)) in runs]
        for row in table.rows(dataset)
    }
    print(f"\n| {table.id}, {dataset} | seeds | " + " | ".join(SHOWN) + " | " + " | ".join(
        f"{metric} - {table.reference}" for metric in TESTED) + " |")  # fmt: skip
    print("|---|---|" + "---|" * (len(SHOWN) + len(TESTED)))
    reference = done[table.reference]
    for method, found in done.items():
        if not found:
            continue
        cells = []
        for metric in SHOWN:
            values = [run["metrics"][metric] for run in found]
            spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.4f}{spread}")
        for metric in TESTED:
            if method == table.reference or len(found) != len(reference):
                cells.append("")
                continue
            one, other = (np.mean([run["units"][metric] for run in side], 0) for side in (found, reference))
            difference = over_units(one, other)
            interval = "" if difference.low is None else f" [{difference.low:+.4f}, {difference.high:+.4f}]"
            cells.append(f"{difference.value:+.4f}{interval}")
        print(f"| {method} | {len(found)} | " + " | ".join(cells) + " |")


def name(table: Any, row: Row, seed: int) -> str:
    return f"{table.id} | {row.where['dataset']} | {row.method} | {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=[table.id for table in PUBLISHED], nargs="*", default=[])
    parser.add_argument("--dataset", nargs="*", default=["classic-ir", "scifact"])
    parser.add_argument("--method", default="", help="rows whose name begins so")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="instead of the table's")
    parser.add_argument("--steps", type=int, help="in an epoch, for a quick look")
    asked = parser.parse_args()
    for table in (table for table in PUBLISHED if table.id in asked.table):
        for seed in range(asked.seeds):
            for row in (row for dataset in asked.dataset for row in table.rows(dataset)):
                key = name(table, row, seed)
                if row.method.startswith(asked.method) and key not in kept():
                    epochs = asked.epochs or row.settings.epochs
                    kept(key, trained(row, seed, epochs, asked.threads, asked.steps))
    for table in PUBLISHED:
        for dataset in asked.dataset:
            shown(table, dataset, kept(), asked.seeds)


if __name__ == "__main__":
    main()
