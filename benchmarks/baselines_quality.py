"""Baselines: test NDCG@20 and seconds of the fit, on MovieLens-100K's own split next to the peers'.

    python benchmarks/baselines_quality.py --peers .cache/peers/bin/python

The peers are ``implicit``'s ALS and RecBole's EASE and ItemKNN. Two rows are on a random split of MovieLens-1M. A peer
has our formula and settings, and is evaluated by our code. One thread each. The peers' environment is made by
benchmarks/setup.sh; without it, their rows stay as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import HERE, answer, deviation, origin, read_results, spawn, write_results

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


@dataclass(frozen=True)
class Peer:
    """A model of another library with our settings."""

    name: str
    model: str
    settings: dict[str, Any]


PEERS = {
    "item neighbours": Peer("item neighbours, by RecBole", "ItemKNN", {"k": 100, "shrink": 20.0}),
    "EASE": Peer("EASE, by RecBole", "EASE", {"reg_weight": 200.0}),
    "implicit ALS": Peer("implicit ALS, by the library implicit", "ALS", ALS),
}
"""Peers by our row."""
METRICS = ("ndcg_at_20", "recall_at_20", "coverage_at_20", "gini_at_20", "novelty_at_20", "popularity_at_20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="the Python of the peers' environment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = HERE / "results" / "baselines_quality.json"
    results = read_results(file)
    for name, settings in ROWS.items():
        other = PEERS.get(name) if arguments.peers else None
        own = []
        theirs = []
        for seed in range(arguments.seeds if other or name == "implicit ALS" else 1):
            own.append(ours(seed, settings))
            if other:  # in turn, so that both meet the same machine
                theirs.append(peer(seed, other, arguments.peers))
        results[name] = {"settings": settings, **summary(own)}
        if other:
            results[other.name] = {"settings": other.settings, **summary(theirs)} | ratio(results[name], theirs)
    write_results(file, results)
    print("| baseline | NDCG@20, mean ± sd | seconds |\n| --- | --- | --- |")
    for name, row in results.items():
        seconds = f"{row['median_seconds']:.3f}" if "median_seconds" in row else ""
        print(f"| {name} | {row['ndcg_at_20']:.4f} ± {row['sd']:.4f} | {seconds} |")


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


def peer(seed: int, other: Peer, python: Path) -> dict[str, float]:
    """The same of a peer, whose factors or scores are ranked by our evaluation."""
    data = workload(seed, {"backbone": "popularity"}).data
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.npz"
        if other.model == "ALS":
            command = [
                str(python), str(HERE / "peers" / "implicit_als.py"), "--dim", str(ALS["dim"]),
                "--epochs", str(EPOCHS), "--seed", str(seed), "--threads", "1", "--alpha", str(ALS["ials_alpha"]),
                "--regularization", str(ALS["ials_lambda"]), "--out", str(out),
            ]  # fmt: skip
        else:
            train = Path(folder) / "train.npy"
            np.save(train, torch.stack([data.train.users, data.train.items], 1).numpy())
            command = [
                str(python), str(HERE / "peers" / "recbole_scores.py"), "--model", other.model,
                "--train", str(train), "--shape", str(data.n_users), str(data.n_items),
                "--settings", json.dumps(other.settings), "--out", str(out),
            ]  # fmt: skip
        seconds = answer(spawn(command, threads=1)[0])["seconds"]
        arrays = {name: torch.from_numpy(array) for name, array in np.load(out).items()}
    factors = Factors(arrays["scores"], torch.eye(data.n_items)) if "scores" in arrays else Factors(**arrays)
    values, lists = rank_users([factors], data.test, data.seen)
    found = evaluation(values[0], lists[0], data.test, data.popularity)
    return {**found.metrics, "seconds": seconds}


def ratio(row: dict[str, Any], runs: list[dict[str, float]]) -> dict[str, float]:
    """The time of ours over that of a peer, the median over pairs of runs."""
    pairs = zip(row["seconds"], (run["seconds"] for run in runs))
    return {"time_of_ours": statistics.median(mine / theirs for mine, theirs in pairs)}


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means over seeds, the sample deviation of NDCG@20, and the seconds."""
    values = [run["ndcg_at_20"] for run in runs]
    return {
        **{name: statistics.mean(run[name] for run in runs) for name in METRICS},
        "values": values,
        "sd": deviation(values),
        "seconds": [run["seconds"] for run in runs],
        "median_seconds": statistics.median(run["seconds"] for run in runs),
        **origin(),
    }


if __name__ == "__main__":
    main()
