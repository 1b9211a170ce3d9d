"""NDCG@20 of graph contrastive learning on ML-100K, each method and plain LightGCN with settings chosen on validation.

Every method has a grid of six settings: learning rates by weights of its term (LightGCN: learning rates by weight
decays). Each is trained once on train, up to 120 epochs, and measured on validation every five epochs; it stops after
20 without a gain, for NCL counted from the start of its prototypes. The best one, with its number of epochs, is then
trained on train and validation over the seeds and tested once. One thread. What is in the result file is not run again.

With ``--peers`` RecBole's SGL and NCL have six settings of their own, around its defaults, on the same parts; our code
evaluates their embeddings. Their epochs are always 120, since RecBole's loop is not stopped. NCL needs faiss there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import HERE, data_root, deviation, origin, read_results, spawn, write_results

from orchestrator import run
from workloads.contract import Runtime
from workloads.recommender.dataset import History
from workloads.recommender.evaluation import evaluation, rank_users
from workloads.recommender.params import Params
from workloads.recommender.scorers import Factors
from workloads.recommender.workload import Recommender

FILE = HERE / "results" / "graph_contrast_quality.json"
EPOCHS, EVERY, PATIENCE = 120, 5, 20
SHAPE: Mapping[str, Any] = {"backbone": "lightgcn", "layers": 2, "batch_size": 2048}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "LightGCN": {},
    "SGL, edge drop": {"contrast": "sgl"},
    "SimGCL": {"contrast": "simgcl"},
    "LightGCL": {"contrast": "lightgcl"},
    "NCL": {"contrast": "ncl"},
}
PEERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "SGL, edge drop, by RecBole": ("SGL", {"type": "ED", "drop_ratio": 0.1, "ssl_tau": 0.2, "reg_weight": 1e-5}),
    "NCL, by RecBole": ("NCL", {"num_clusters": 64, "ssl_temp": 0.2, "reg_weight": 1e-4, "m_step": 1}),
}
"""RecBole's models with our temperature, layers, clusters and drop ratio, and its regularisation."""

WEIGHTS: Mapping[str, tuple[float, ...]] = {"NCL": (2e-5, 2e-4, 2e-3)}
"""Weights where they are not .001, .003 and .01. NCL has those of RecBole's, whose sums over 2048 are means here."""

PEER_WEIGHTS = {"SGL": ("ssl_weight", (0.0005, 0.005, 0.05)), "NCL": ("ssl_reg", (1e-8, 1e-7, 1e-6))}
"""Weights of the contrastive term, which RecBole sums over a batch: its default, which is the highest of SGL's and the
middle one of NCL's, and tenths of it or ten times as much."""


def grid(name: str) -> Iterator[dict[str, Any]]:
    """The settings of a method that are compared on validation."""
    if name == "LightGCN":
        for lr, decay in itertools.product((3e-3, 1e-2), (5e-7, 2e-6, 1e-5)):
            yield {**SHAPE, "lr": lr, "weight_decay": decay}
        return
    for lr, weight in itertools.product((3e-3, 1e-2), WEIGHTS.get(name, (0.001, 0.003, 0.01))):
        own = {"contrast_weight": weight, "contrast_temperature": 0.2}
        prototypes = {"prototype_weight": weight, "prototype_warmup": 20} if name == "NCL" else {}
        yield {**SHAPE, **METHODS[name], "lr": lr, "weight_decay": 2e-6, **own, **prototypes}


def validate(settings: Mapping[str, Any]) -> tuple[float, int]:
    """The best NDCG@20 on validation, and its epoch."""
    runtime = Runtime(device=torch.device("cpu"), data=data_root(), seed=0, epochs=EPOCHS)
    workload = Recommender(Params(dataset="ml-100k", **settings), runtime)
    waits_from = int(settings.get("prototype_warmup", 0))
    best = (0.0, 0)
    for epoch in range(1, EPOCHS + 1):
        workload.train_epoch(epoch)
        if epoch % EVERY == 0:
            best = max(best, (workload.evaluate("validation").metrics["ndcg_at_20"], epoch))
            if epoch - max(best[1], waits_from) >= PATIENCE:
                break
    return best


def peer_grid(name: str) -> Iterator[dict[str, Any]]:
    """The settings of a peer that are compared on validation."""
    model, own = PEERS[name]
    weight, values = PEER_WEIGHTS[model]
    for lr, value in itertools.product((1e-3, 3e-3), values):
        yield {**own, "n_layers": 2, "learning_rate": lr, weight: value}


def peer(
    name: str, settings: Mapping[str, Any], epochs: int, seed: int, python: Path, *, final: bool
) -> list[tuple[float, int]]:
    """NDCG@20 of a peer and the epoch, every few epochs: on validation, or if ``final`` on test after the last."""
    runtime = Runtime(device=torch.device("cpu"), data=data_root(), seed=0, epochs=1, holdout=not final)
    data = Recommender(Params(dataset="ml-100k", backbone="popularity"), runtime).data
    every = epochs if final else EVERY
    relevant: History = data.test if final else data.validation
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder) / "train.npy"
        out = Path(folder) / "embeddings.npz"
        np.save(train, torch.stack([data.train.users, data.train.items], 1).numpy())
        command = [
            str(python), str(HERE / "peers" / "recbole_scores.py"), "--model", PEERS[name][0],
            "--train", str(train), "--shape", str(data.n_users), str(data.n_items), "--epochs", str(epochs),
            "--every", str(every), "--seed", str(seed), "--settings", json.dumps(settings), "--out", str(out),
        ]  # fmt: skip
        spawn(command)
        moments = np.load(out)
        models = [Factors(torch.from_numpy(u), torch.from_numpy(i)) for u, i in zip(moments["users"], moments["items"])]
    values, lists = rank_users(models, relevant, data.seen if final else data.train)
    found = [evaluation(*each, relevant, data.popularity).metrics["ndcg_at_20"] for each in zip(values, lists)]
    return [(value, min((number + 1) * every, epochs)) for number, value in enumerate(found)]


def untried(settings: Iterator[dict[str, Any]], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings that the search of ``row`` does not have yet."""
    tried = [each["settings"] for each in row["search"]]
    return [each for each in settings if each not in tried]


def tested(row: Mapping[str, Any], best: Mapping[str, Any], seeds: int) -> bool:
    """Whether ``row`` has the test values of its best settings."""
    return len(row.get("values", ())) >= seeds and row["settings"] == best["settings"]


def run_peer(name: str, row: dict[str, Any], results: dict[str, Any], seeds: int, python: Path) -> None:
    """Search and test a peer as ours; what is in ``row`` is not run again."""
    for settings in untried(peer_grid(name), row):
        value, epoch = max(peer(name, settings, EPOCHS, 0, python, final=False))
        row["search"].append({"settings": settings, "validation": value, "epochs": epoch})
        write_results(FILE, results)
    best = max(row["search"], key=lambda each: float(each["validation"]))
    if not tested(row, best, seeds):
        each = [peer(name, best["settings"], best["epochs"], seed, python, final=True) for seed in range(seeds)]
        values = [moments[-1][0] for moments in each]
        row |= {"values": values, "mean": statistics.mean(values), "sd": deviation(values)}
        row |= {"settings": best["settings"], "epochs": best["epochs"], **origin()}
        write_results(FILE, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="the Python of the peers' environment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = read_results(FILE)
    for name in METHODS:
        row = results.setdefault(name, {"search": []})
        for settings in untried(grid(name), row):
            value, epoch = validate(settings)
            row["search"].append({"settings": settings, "validation": value, "epochs": epoch})
            write_results(FILE, results)
        best = max(row["search"], key=lambda each: float(each["validation"]))
        if tested(row, best, arguments.seeds):
            continue
        started = time.monotonic()
        plan = {**best["settings"], "epochs": best["epochs"], "refit": "only", "tracking": "none"}
        runs = [
            run("recommender", dataset="ml-100k", seed=seed, cpus_per_worker=1, **plan)
            for seed in range(arguments.seeds)
        ]
        values = [result.metrics["test/ndcg_at_20"] for result in runs]
        seconds = time.monotonic() - started
        row |= {"values": values, "mean": statistics.mean(values), "sd": deviation(values), "seconds": seconds}
        row |= {"settings": best["settings"], "epochs": best["epochs"], **origin()}
        write_results(FILE, results)
    for name in PEERS if arguments.peers else ():
        run_peer(name, results.setdefault(name, {"search": []}), results, arguments.seeds, arguments.peers)
    print("\n| method | NDCG@20, mean ± sd | validation | lr, weight, epochs |\n| --- | --- | --- | --- |")
    for name, row in results.items():
        weights = [
            row["settings"][key] for key in ("contrast_weight", "ssl_weight", "ssl_reg") if key in row["settings"]
        ]
        rate = row["settings"].get("lr", row["settings"].get("learning_rate"))
        chosen = [rate, *(weights or ["-"]), row["epochs"]]
        validation = max(each["validation"] for each in row["search"])
        print(f"| {name} | {row['mean']:.4f} ± {row['sd']:.4f} | {validation:.4f} | {', '.join(map(str, chosen))} |")


if __name__ == "__main__":
    main()
