"""Trials of the recommender in one process, as in a sweep without Ray, several at once: their seconds, as JSON.

Each trial has its own learning rate, weight decay and seed, evaluates every epoch, and ends with its checkpoint. There
is no search and no tracker.
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


def configs(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Configurations as a sweep's manager creates them."""
    root = data_root() if args.dataset != "synthetic" else folder
    for number in range(args.trials):
        params = Params(
            dataset=args.dataset,
            dim=args.dim,
            batch_size=args.batch_size,
            lr=1e-3 * 1.1**number,
            weight_decay=1e-7 * 1.3**number,
        )
        plan = Plan(epochs=args.epochs, refit=True)
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


def run(args: argparse.Namespace, device: torch.device) -> float:
    """Seconds for all trials, ``args.at_once`` at a time."""
    with tempfile.TemporaryDirectory() as folder:
        feed, ended = configs(args, Path(folder)), 0
        runner = PackRunner(device)
        started = time.perf_counter()
        while ended < args.trials:
            while len(runner) < args.at_once and (config := next(feed, None)) is not None:
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
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    warm_up = argparse.Namespace(**{**vars(args), "trials": min(args.trials, args.at_once), "epochs": 2})
    run(warm_up, device)  # loads data and kernels
    print(json.dumps({"seconds": run(args, device)}))


if __name__ == "__main__":
    main()
