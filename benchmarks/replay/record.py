"""Record many trials of the recommender at a tenth of their epochs (``recording.py`` has the format), on one thread.

    python -m benchmarks.replay.record dns

Trials are drawn at random from the space. A model is evaluated ten times, among them at every epoch at which a
scheduler decides. An interrupted recording begins again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch

from benchmarks.harness import commit, data_root
from benchmarks.replay.recording import Recording
from search_spaces import recommender as presets
from workloads.contract import Runtime
from workloads.recommender.dataset import History
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

CUTOFF = 20
BLOCK = 2**22
"""Scores ranked at once."""

VALUES = 10
"""Number of models of a trial that are evaluated."""


@dataclass(frozen=True)
class Search:
    """What is recorded: a dataset, a space, fixed parameters, and the epochs and number of the trials."""

    dataset: str
    space: Callable[[optuna.Trial], dict[str, Any]]
    epochs: int
    fixed: dict[str, Any]
    trials: int = 1000


def _bce(trial: optuna.Trial) -> dict[str, Any]:
    return {**presets.sgd(trial), "dim": trial.suggest_categorical("dim", [16, 32, 64])}


def _dns(trial: optuna.Trial) -> dict[str, Any]:
    return {**presets.sgd(trial), "candidates": trial.suggest_int("candidates", 1, 15)}


def _gbpr(trial: optuna.Trial) -> dict[str, Any]:
    return {
        **presets.sgd(trial),
        "rho": trial.suggest_float("rho", 0.0, 1.0),
        "group": trial.suggest_int("group", 2, 5),
    }


def _lightgcn(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [1024, 2048, 4096]),
        "layers": trial.suggest_int("layers", 1, 3),
    }


SEARCHES = {
    "dns": Search("ml-100k", _dns, 50, {"sampler": "dns"}),
    "bce": Search("ml-100k", _bce, 50, {"loss": "bce"}),
    "gbpr": Search("lastfm", _gbpr, 50, {"loss": "gbpr"}),
    "lightgcn": Search("ml-100k", _lightgcn, 30, {"backbone": "lightgcn"}, 200),
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
        """Units (K, U), the test value of the best of the K models, and the median CPU seconds between two of them."""
        search = self.search
        runtime = Runtime(device=torch.device("cpu"), data=data_root(), seed=seed, epochs=search.epochs, holdout=True)
        workload = Recommender(Params(dataset=search.dataset, **search.fixed, **params), runtime)
        if not self._rankings:
            targets = {split: workload.ranking_targets(split) for split in ("validation", "test")}
            self._rankings = {
                split: Ranking(*pair, workload.data.n_users, workload.data.n_items) for split, pair in targets.items()
            }
            _check(workload, self._rankings["validation"])
        every = search.epochs // VALUES
        units, seconds = [], []
        best, kept = -1.0, workload.embeddings()
        for last in range(every, search.epochs + 1, every):
            started = time.thread_time()
            for epoch in range(last - every + 1, last + 1):
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
    values = ranking(*workload.embeddings())
    if not np.allclose(np.asarray(own["ndcg_at_20"]), values, atol=1e-5):
        raise SystemExit("the recorder's NDCG@20 is not the workload's")


def record(name: str, trials: int, repeated: int, seeds: int, say: Callable[[str], None] = print) -> Recording:
    """A recording of ``trials``: the best ``repeated``, and half as many others, with ``seeds`` further seeds."""
    recorder = Recorder(name)
    search = recorder.search
    survey = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = []
    for _ in range(trials):
        trial = survey.ask()
        drawn.append((search.space(trial), dict(trial.params)))
    distributions = {key: optuna.distributions.distribution_to_json(d) for key, d in trial.distributions.items()}
    started = time.monotonic()
    runs = []
    for number, (params, _) in enumerate(drawn):
        runs.append(recorder.trial(params, seed=number))
        if number % 50 == 49:
            say(f"{number + 1} of {trials} trials, {time.monotonic() - started:.0f} s")
    best = np.array([units.astype(np.float32).mean(axis=1).max() for units, _, _ in runs])
    order = np.argsort(-best)
    others = np.random.default_rng(0).permutation(order[repeated:])[: repeated // 2]
    again = np.sort(np.concatenate([order[:repeated], others]))
    further = [[recorder.trial(drawn[i][0], seed=int(i) + 1_000_003 * k) for k in range(1, seeds + 1)] for i in again]
    say(f"all, {time.monotonic() - started:.0f} s")
    return Recording(
        {
            "search": name,
            "dataset": search.dataset,
            "fixed": search.fixed,
            "every": search.epochs // VALUES,
            "metric": "ndcg_at_20",
            "distributions": distributions,
            "commit": commit(),
        },
        [searched for _, searched in drawn],
        np.stack([units for units, _, _ in runs]),
        np.array([test for _, test, _ in runs], dtype=np.float32),
        np.array([seconds for _, _, seconds in runs], dtype=np.float32),
        again,
        np.stack([np.stack([units for units, _, _ in each]) for each in further]),
        np.array([[test for _, test, _ in each] for each in further], dtype=np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("search", choices=SEARCHES)
    parser.add_argument("--trials", type=int, help="Default: 1,000, of lightgcn 200.")
    parser.add_argument("--repeated", type=int, help="Best trials with further seeds. Default: a tenth.")
    parser.add_argument("--seeds", type=int, default=2, help="Further seeds of each of them.")
    parser.add_argument("--out", type=Path, default=Path(".cache/recordings"))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    trials = options.trials or SEARCHES[options.search].trials
    repeated = options.repeated or max(2, trials // 10)
    recording = record(options.search, trials, repeated, options.seeds, partial(print, flush=True))
    recording.write(options.out / f"{options.search}.npz")


if __name__ == "__main__":
    main()
