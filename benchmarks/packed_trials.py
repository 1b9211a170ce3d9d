"""Trials of the recommender in one process, as a sweep runs them without Ray, so many at once: their seconds, as JSON.

Every trial has a learning rate, a weight decay and a seed of its own, evaluates every epoch, and ends with its
checkpoint. No search, no tracker: only the trials.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from harness import data_root

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.sweeps.pack_plan import PackRunner
from workloads.recommender.params import Params


def configs(asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """What a sweep's manager hands out."""
    root = data_root() if asked.dataset != "synthetic" else folder
    for number in range(asked.trials):
        params = Params(
            dataset=asked.dataset,
            dim=asked.dim,
            batch_size=asked.batch_size,
            lr=1e-3 * 1.1**number,
            weight_decay=1e-7 * 1.3**number,
        )
        plan = Plan(epochs=asked.epochs, refit=True)
        spec = ExperimentSpec(workload="recommender", params=params.model_dump(), plan=plan, seed=number)
        yield {
            "number": number,
            "spec": spec.model_dump(mode="json"),
            "folder": str(folder / str(number)),
            "data": str(root),
            "keep": 2,
            "save_at_rungs": False,
            "measure": [],
        }


def run(asked: argparse.Namespace, device: torch.device) -> float:
    """Seconds for all trials, ``asked.at_once`` under way at any time."""
    with tempfile.TemporaryDirectory() as folder:
        feed, ended = configs(asked, Path(folder)), 0
        runner = PackRunner(device)
        started = time.perf_counter()
        while ended < asked.trials:
            while len(runner) < asked.at_once and (config := next(feed, None)) is not None:
                runner.begin(config)
            for number, payload in runner.step():
                if "error" in payload:
                    raise SystemExit(f"trial {number}: {payload['error']}")
                if payload["done"]:
                    runner.drop(number)
                    ended += 1
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("trials", "at-once", "epochs", "threads", "dim", "batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    device = torch.device(asked.device)
    warm_up = argparse.Namespace(**{**vars(asked), "trials": min(asked.trials, asked.at_once), "epochs": 2})
    run(warm_up, device)  # loads the data, and the device's kernels
    print(json.dumps({"seconds": run(asked, device)}))


if __name__ == "__main__":
    main()
