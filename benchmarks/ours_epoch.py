"""Our recommender's training epochs, one process: the seconds of each, as JSON.

With --evaluate, the seconds of full rankings of all users on test instead.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from harness import data_root

from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

EPOCHS = 100
"""Planned epochs of the run. They decide whether its rankings are done by a compiled loop."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", choices=("mf", "lightgcn"), required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dataset", choices=("ml-100k", "ml-1m"), default="ml-100k")
    parser.add_argument("--layers", type=int, default=2, help="Of LightGCN.")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--contrast", choices=("sgl", "simgcl", "lightgcl", "ncl"), help="With LightGCN.")
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape: dict[str, Any] = {"batch_size": args.batch_size} | (
        {"layers": args.layers} if args.backbone == "lightgcn" else {}
    )
    if args.contrast:
        shape["contrast"] = args.contrast
    if args.contrast == "ncl":
        shape["prototype_warmup"] = 0
    params = Params(dataset=args.dataset, backbone=args.backbone, dim=32, lr=1e-3, weight_decay=0, **shape)
    runtime = Runtime(
        device=torch.device("cpu"), data=data_root(), seed=0, epochs=EPOCHS, holdout=False
    )  # without a validation part: the same 80,000 interactions as every peer
    workload = Recommender(params, runtime)
    seconds = []
    for epoch in range(1, args.epochs + 1):
        started = time.perf_counter()
        if args.evaluate:
            workload.evaluate("test")
        else:
            workload.train_epoch(epoch)
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds, "examples": workload.data.pairs.shape[1]}))


if __name__ == "__main__":
    main()
