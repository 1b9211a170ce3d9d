"""Baselines: test NDCG@20 and seconds of the fit, on MovieLens-100K's own split next to ``implicit``'s ALS.

    python benchmarks/baselines_quality.py --peers .cache/peers/bin/python

Two rows are on a random split of MovieLens-1M. Both ALS have the same formula and settings, and are evaluated by the
same code. One thread each. The peers' environment is made by benchmarks/setup.sh; without it, their row stays as it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import origin

from workloads.contract import Runtime
from workloads.data import default_data_root
from workloads.recommender.evaluation import evaluation, rank_users
from workloads.recommender.params import Params
from workloads.recommender.scorers import Factors
from workloads.recommender.workload import Recommender

EPOCHS = 15
ALS: dict[str, Any] = {"dim": 32, "ials_alpha": 5.0, "ials_lambda": 20.0}
ROWS: dict[str, dict[str, Any]] = {
    "popularity": {"backbone": "popularity"},
    "item neighbours": {"backbone": "item_knn"},
    "EASE": {"backbone": "ease"},
    "implicit ALS": {"backbone": "ials", **ALS},
    "item neighbours, MovieLens-1M": {"backbone": "item_knn", "dataset": "ml-1m"},
    "EASE, MovieLens-1M": {"backbone": "ease", "dataset": "ml-1m"},
}
PEER = "implicit ALS, by the library implicit"
METRICS = ("ndcg_at_20", "recall_at_20", "coverage_at_20", "gini_at_20", "novelty_at_20", "popularity_at_20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="the Python of the peers' environment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = Path(__file__).parent / "results" / "baselines_quality.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name, settings in ROWS.items():
        drawn = settings["backbone"] == "ials"
        runs = [ours(seed, settings) for seed in range(arguments.seeds if drawn else 1)]
        results[name] = {"settings": settings, **summary(runs)}
    if arguments.peers:
        results[PEER] = {"settings": ALS, **summary([peer(seed, arguments.peers) for seed in range(arguments.seeds)])}
        pairs = zip(results["implicit ALS"]["seconds"], results[PEER]["seconds"])
        results[PEER]["time_of_ours"] = statistics.median(own / theirs for own, theirs in pairs)
    file.write_text(json.dumps(results, indent=1))
    print("| baseline | NDCG@20, mean ± sd | seconds |\n| --- | --- | --- |")
    for name, row in results.items():
        print(f"| {name} | {row['ndcg_at_20']:.4f} ± {row['sd']:.4f} | {row['median_seconds']:.3f} |")


def workload(seed: int, settings: dict[str, Any]) -> Recommender:
    """A refit: all training interactions."""
    runtime = Runtime(device=torch.device("cpu"), data=default_data_root(), seed=seed, epochs=EPOCHS, holdout=False)
    return Recommender(Params(**{"dataset": "ml-100k", **settings}), runtime)


def ours(seed: int, settings: dict[str, Any]) -> dict[str, float]:
    """Test metrics and seconds of a fit."""
    built = workload(seed, settings)
    started = time.perf_counter()
    for epoch in range(1, (EPOCHS if settings["backbone"] == "ials" else 1) + 1):
        built.train_epoch(epoch)
    seconds = time.perf_counter() - started
    return {**built.evaluate("test").metrics, "seconds": seconds}


def peer(seed: int, python: Path) -> dict[str, float]:
    """The same of the library, whose factors are ranked by our evaluation."""
    data = workload(seed, {"backbone": "popularity"}).data
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "factors.npz"
        command = [
            str(python), str(Path(__file__).parent / "peers" / "implicit_als.py"), "--dim", str(ALS["dim"]),
            "--epochs", str(EPOCHS), "--seed", str(seed), "--threads", "1", "--alpha", str(ALS["ials_alpha"]),
            "--regularization", str(ALS["ials_lambda"]), "--out", str(out),
        ]  # fmt: skip
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        arrays = np.load(out)
        factors = Factors(torch.from_numpy(arrays["users"]), torch.from_numpy(arrays["items"]))
    values, lists = rank_users([factors], data.test, data.seen)
    found = evaluation(values[0], lists[0], data.test, data.popularity)
    return {**found.metrics, "seconds": json.loads(answer.stdout)["seconds"]}


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means over seeds, the sample deviation of NDCG@20, and the seconds."""
    values = [run["ndcg_at_20"] for run in runs]
    return {
        **{name: statistics.mean(run[name] for run in runs) for name in METRICS},
        "values": values,
        "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
        "seconds": [run["seconds"] for run in runs],
        "median_seconds": statistics.median(run["seconds"] for run in runs),
        **origin(),
    }


if __name__ == "__main__":
    main()
