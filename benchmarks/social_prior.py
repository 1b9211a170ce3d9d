"""Priors of BNS on LastFM in the style of thesis table 4.3: popularity, users, and the trust network (E-4.B5).

Sequential SGD on matrix factorisation, refitted, test NDCG@20 of the last epoch, one thread. Settings are the same for
all rows and were not searched.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from harness import HERE, deviation, origin, write_results

from workloads.contract import Runtime
from workloads.data import default_data_root
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

SETTINGS: dict[str, Any] = {"dataset": "lastfm", "optimizer": "sgd", "lr": 0.05, "weight_decay": 0.01}
EPOCHS = 60
ROWS: dict[str, dict[str, Any]] = {
    "uniform negatives": {},
    "BNS, popularity prior": {"sampler": "bns"},
    "BNS, users prior": {"sampler": "bns", "bns_prior": "users"},
    "BNS, social prior": {"sampler": "bns", "bns_prior": "social"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, own in ROWS.items():
        started = time.perf_counter()
        values = [trained(seed, own) for seed in range(seeds)]
        results[name] = {
            "settings": {**SETTINGS, **own, "epochs": EPOCHS}, "values": values, "mean": statistics.mean(values),
            "sd": deviation(values), "seconds": time.perf_counter() - started, **origin(),
        }  # fmt: skip
        print(f"| {name} | {results[name]['mean']:.4f} ± {results[name]['sd']:.4f} |", flush=True)
    write_results(HERE / "results" / "social_prior.json", results)


def trained(seed: int, own: dict[str, Any]) -> float:
    """Test NDCG@20 after the last epoch."""
    runtime = Runtime(device=torch.device("cpu"), data=default_data_root(), seed=seed, epochs=EPOCHS, holdout=False)
    workload = Recommender(Params(**SETTINGS, **own), runtime)
    for epoch in range(1, EPOCHS + 1):
        workload.train_epoch(epoch)
    return float(workload.evaluate("test").metrics["ndcg_at_20"])


if __name__ == "__main__":
    main()
