"""Baselines: test NDCG@20 and seconds of the fit, on MovieLens-100K's own split next to the peers'.

    python benchmarks/baselines_quality.py --peers .cache/peers/bin/python

The peers are ``implicit``'s ALS and RecBole's EASE and ItemKNN. Two rows are on a random split of MovieLens-1M. A peer
has our formula and settings, and is evaluated by our code. One thread each. The peers' environment is made by
benchmarks/setup.sh; without it, their rows stay as they are. On a busy machine ``--recbole-alone`` adds RecBole's rows,
which do not depend on a seed, without times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
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
PEER = "implicit ALS, by the library implicit"
RECBOLE: dict[str, tuple[str, dict[str, float]]] = {
    "item neighbours": ("ItemKNN", {"k": 100, "shrink": 20.0}),
    "EASE": ("EASE", {"reg_weight": 200.0}),
}
"""RecBole's models and settings by our row."""
METRICS = ("ndcg_at_20", "recall_at_20", "coverage_at_20", "gini_at_20", "novelty_at_20", "popularity_at_20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="the Python of the peers' environment")
    parser.add_argument("--recbole-alone", action="store_true", help="only RecBole's rows, without times")
    arguments = parser.parse_args()
    if arguments.recbole_alone and not arguments.peers:
        parser.error("--recbole-alone needs --peers")
    torch.set_num_threads(1)
    file = HERE / "results" / "baselines_quality.json"
    results = read_results(file)
    if not arguments.recbole_alone:
        theirs = []
        for name, settings in ROWS.items():
            is_als = settings["backbone"] == "ials"
            seeds = arguments.seeds if is_als or (arguments.peers and name in RECBOLE) else 1
            own = []
            for seed in range(seeds):
                own.append(ours(seed, settings))
                if is_als and arguments.peers:  # in turn, so that both meet the same machine
                    theirs.append(peer(seed, arguments.peers))
            results[name] = {"settings": settings, **summary(own)}
        if theirs:
            results[PEER] = {"settings": ALS, **summary(theirs)} | ratio(results["implicit ALS"], theirs)
    for name, (model, own) in RECBOLE.items() if arguments.peers else ():
        count = 1 if arguments.recbole_alone else arguments.seeds
        runs = [recbole(model, own, arguments.peers) for _ in range(count)]
        row = {"settings": own, **summary(runs)}
        timed = {name: row.pop(name) for name in ("seconds", "median_seconds")} | ratio(results[name], runs)
        results[f"{name}, by RecBole"] = row | ({} if arguments.recbole_alone else timed)
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


def peer(seed: int, python: Path) -> dict[str, float]:
    """The same of the library, whose factors are ranked by our evaluation."""
    data = workload(seed, {"backbone": "popularity"}).data
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "factors.npz"
        command = [
            str(python), str(HERE / "peers" / "implicit_als.py"), "--dim", str(ALS["dim"]),
            "--epochs", str(EPOCHS), "--seed", str(seed), "--threads", "1", "--alpha", str(ALS["ials_alpha"]),
            "--regularization", str(ALS["ials_lambda"]), "--out", str(out),
        ]  # fmt: skip
        seconds = answer(spawn(command, threads=1)[0])["seconds"]
        arrays = np.load(out)
        factors = Factors(torch.from_numpy(arrays["users"]), torch.from_numpy(arrays["items"]))
    values, lists = rank_users([factors], data.test, data.seen)
    found = evaluation(values[0], lists[0], data.test, data.popularity)
    return {**found.metrics, "seconds": seconds}


def recbole(model: str, settings: dict[str, float], python: Path) -> dict[str, float]:
    """The same of a model of RecBole, whose scores are ranked by our evaluation."""
    data = workload(0, {"backbone": "popularity"}).data
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder) / "train.npy"
        out = Path(folder) / "scores.npz"
        np.save(train, torch.stack([data.train.users, data.train.items], 1).numpy())
        command = [
            str(python), str(HERE / "peers" / "recbole_scores.py"), "--model", model,
            "--train", str(train), "--shape", str(data.n_users), str(data.n_items),
            "--settings", json.dumps(settings), "--out", str(out),
        ]  # fmt: skip
        seconds = answer(spawn(command, threads=1)[0])["seconds"]
        scores = torch.from_numpy(np.load(out)["scores"])
    values, lists = rank_users([Factors(scores, torch.eye(data.n_items))], data.test, data.seen)
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
