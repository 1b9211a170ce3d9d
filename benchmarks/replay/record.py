"""Record many trials of the recommender at every epoch (``recording.py`` has the format), in one process of one thread.

    python -m benchmarks.replay.record dns --trials 1000

Trials are drawn at random from the space. An interrupted recording begins again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch

from benchmarks.harness import commit, data_root
from benchmarks.replay.recording import Recording
from orchestrator.search import spaces
from search_spaces import recommender as presets
from workloads.contract import Runtime
from workloads.recommender.dataset import History
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

CUTOFF = 20
BLOCK = 2**22
"""Scores ranked at once."""


@dataclass(frozen=True)
class Search:
    """What is recorded: a dataset, a space, fixed parameters, and the epochs of a trial."""

    dataset: str
    space: Callable[[optuna.Trial], dict[str, Any]]
    epochs: int
    fixed: dict[str, Any] = field(default_factory=dict)


def _sgd(trial: optuna.Trial) -> dict[str, Any]:
    return {**presets.sgd(trial), "dim": trial.suggest_categorical("dim", [16, 32, 64])}


def _sgd_dns(trial: optuna.Trial) -> dict[str, Any]:
    return {**presets.sgd(trial), "candidates": trial.suggest_int("candidates", 1, 15)}


def _lightgcn(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [1024, 2048, 4096]),
        "layers": trial.suggest_int("layers", 1, 3),
    }


SEARCHES = {
    "bpr": Search("ml-100k", _sgd, 50),
    "dns": Search("ml-100k", _sgd_dns, 50, {"sampler": "dns"}),
    "lastfm": Search("lastfm", _sgd_dns, 25, {"sampler": "dns"}),
    "lightgcn": Search("ml-100k", _lightgcn, 30, {"backbone": "lightgcn"}),
}


class Ranking:
    """NDCG@20 of each user on one split, as the workload's own evaluation computes it, without its other metrics."""

    def __init__(self, relevant: History, excluded: History, n_users: int, n_items: int) -> None:
        rows = max(1, BLOCK // n_items)
        blocks = [(first, min(first + rows, n_users)) for first in range(0, n_users, rows)]
        self._blocks = [(*block, relevant.mask(*block, n_items), excluded.mask(*block, n_items)) for block in blocks]
        self.users = np.flatnonzero(relevant.counts)
        gains = 1 / torch.log2(torch.arange(2, CUTOFF + 2, dtype=torch.float32))
        ideal = torch.cat([torch.zeros(1), gains.cumsum(0)])
        self._gains = gains
        self._ideal = ideal[torch.from_numpy(np.minimum(relevant.counts, CUTOFF))]

    def __call__(self, users: torch.Tensor, items: torch.Tensor) -> np.ndarray[Any, Any]:
        """(U,) float32, of the users with a relevant item."""
        values = torch.empty(len(users))
        for first, last, relevant, excluded in self._blocks:
            top = (users[first:last] @ items.T).masked_fill_(excluded, -torch.inf).topk(CUTOFF).indices
            hits = relevant.gather(1, top)
            values[first:last] = (hits * self._gains).sum(1) / self._ideal[first:last]
        return values.numpy()[self.users]


class Recorder:
    """Trains trials of one search."""

    def __init__(self, name: str) -> None:
        self.search = SEARCHES[name]
        self._rankings: dict[str, Ranking] = {}

    def trial(self, params: dict[str, Any], seed: int) -> tuple[np.ndarray[Any, Any], float, float]:
        """Units (E, U), the test value at the best epoch, and the median CPU seconds of an epoch (one thread)."""
        runtime = Runtime(
            device=torch.device("cpu"), data=data_root(), seed=seed, epochs=self.search.epochs, holdout=True
        )
        workload = Recommender(Params(dataset=self.search.dataset, **self.search.fixed, **params), runtime)
        if not self._rankings:
            targets = {split: workload.ranking_targets(split) for split in ("validation", "test")}
            self._rankings = {
                split: Ranking(*pair, workload.data.n_users, workload.data.n_items) for split, pair in targets.items()
            }
            _check(workload, self._rankings["validation"])
        units, seconds = [], []
        best, kept = -1.0, workload.embeddings()
        for epoch in range(1, self.search.epochs + 1):
            started = time.thread_time()
            workload.train_epoch(epoch)
            users, items = workload.embeddings()
            units.append(self._rankings["validation"](users, items))
            seconds.append(time.thread_time() - started)
            if (value := units[-1].mean()) > best:
                best, kept = value, (users.clone(), items.clone())
        test = float(self._rankings["test"](*kept).mean())
        return np.stack(units).astype(np.float16), test, float(np.median(seconds))


def _check(workload: Recommender, ranking: Ranking) -> None:
    """That the values are those of the workload."""
    own = workload.evaluate("validation").units
    found = ranking(*workload.embeddings())
    if not np.allclose(np.asarray(own["ndcg_at_20"]), found, atol=1e-5):
        raise SystemExit("the recorder's NDCG@20 is not the workload's")


def record(name: str, trials: int, repeated: int, seeds: int, say: Callable[[str], None] = print) -> Recording:
    """A recording of ``trials``, the best ``repeated`` of them with ``seeds`` further seeds."""
    recorder = Recorder(name)
    search = recorder.search
    draws = spaces.draws(search.space, search.fixed, 0, trials)
    searched = [{key: value for key, value in draw.items() if key not in search.fixed} for draw in draws]
    started = time.monotonic()
    runs = []
    for number, params in enumerate(searched):
        runs.append(recorder.trial(params, seed=number))
        if number % 50 == 49:
            say(f"{number + 1} of {trials} trials, {time.monotonic() - started:.0f} s")
    best = np.array([units.astype(np.float32).mean(axis=1).max() for units, _, _ in runs])
    order = np.sort(np.argsort(-best)[:repeated])
    again = [[recorder.trial(searched[i], seed=int(i) + 1_000_003 * k) for k in range(1, seeds + 1)] for i in order]
    epochs = [[int(units.astype(np.float32).mean(axis=1).argmax()) for units, _, _ in each] for each in again]
    say(f"all, {time.monotonic() - started:.0f} s")
    return Recording(
        {
            "search": name,
            "dataset": search.dataset,
            "fixed": search.fixed,
            "epochs": search.epochs,
            "metric": "ndcg_at_20",
            "commit": commit(),
        },
        searched,
        np.stack([units for units, _, _ in runs]),
        np.array([test for _, test, _ in runs], dtype=np.float32),
        np.array([seconds for _, _, seconds in runs], dtype=np.float32),
        order,
        np.array([[run[0][e] for run, e in zip(each, at)] for each, at in zip(again, epochs)]),
        np.array([[run[1] for run in each] for each in again], dtype=np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("search", choices=SEARCHES)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeated", type=int, default=200, help="Trials, the best ones, with further seeds.")
    parser.add_argument("--seeds", type=int, default=2, help="Further seeds of each of them.")
    parser.add_argument("--out", type=Path, default=Path(".cache/recordings"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    made = record(asked.search, asked.trials, asked.repeated, asked.seeds, partial(print, flush=True))
    made.write(asked.out / f"{asked.search}.npz")


if __name__ == "__main__":
    main()
