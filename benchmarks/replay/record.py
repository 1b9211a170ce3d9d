"""Record many trials of the recommender at a tenth of their epochs (``recording.py`` has the format), on one thread.

    python -m benchmarks.replay.record dns

Trials are drawn at random from the space. A model is evaluated after each tenth of its epochs and at half of the first
one, which is at every epoch at which a scheduler decides. An interrupted recording is continued by the same command,
and has what was recorded meanwhile; one that was interrupted before the further seeds gets them with ``--trials 1``. A
recording from before the first of these epochs was recorded gets it when it is continued.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch

from benchmarks.harness import commit, data_root
from benchmarks.replay.recording import Recording, read
from orchestrator.search.schedulers import PARTS, rungs
from search_spaces import recommender as presets
from workloads.contract import Runtime
from workloads.recommender.dataset import History
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

CUTOFF = 20
BLOCK = 2**22
"""Scores ranked at once."""

PIECE = 25
"""Trainings between two writes of the file."""

Run = tuple[np.ndarray[Any, Any], float, float]
"""Units (K, U), the test value of the best of the K models, and the median CPU seconds of ``every`` epochs."""


@dataclass(frozen=True)
class Search:
    """What is recorded: a dataset, a space, fixed parameters, and the epochs and number of the trials."""

    dataset: str
    space: Callable[[optuna.Trial], dict[str, Any]]
    epochs: int
    fixed: dict[str, Any]
    trials: int = 1000

    @property
    def every(self) -> int:
        return self.epochs // PARTS

    @property
    def recorded(self) -> list[int]:
        """The recorded epochs: those at which a scheduler decides, and the last one."""
        return [*rungs(self.epochs, "racing"), self.epochs]


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

    def trial(self, params: dict[str, Any], seed: int, values: int | None = None) -> Run:
        """Train one trial and evaluate its models, or only so many ``values``."""
        search = self.search
        runtime = Runtime(device=torch.device("cpu"), data=data_root(), seed=seed, epochs=search.epochs, holdout=True)
        workload = Recommender(Params(dataset=search.dataset, **search.fixed, **params), runtime)
        if not self._rankings:
            targets = {split: workload.ranking_targets(split) for split in ("validation", "test")}
            self._rankings = {
                split: Ranking(*pair, workload.data.n_users, workload.data.n_items) for split, pair in targets.items()
            }
            _check(workload, self._rankings["validation"])
        units, seconds = [], []
        best, kept = -1.0, workload.embeddings()
        for before, last in pairwise([0, *search.recorded[:values]]):
            started = time.thread_time()
            for epoch in range(before + 1, last + 1):
                workload.train_epoch(epoch)
            users, items = workload.embeddings()
            units.append(self._rankings["validation"](users, items))
            if last - before == search.every:
                seconds.append(time.thread_time() - started)
            if (value := units[-1].mean()) > best:
                best, kept = value, (users.clone(), items.clone())
        test = float(self._rankings["test"](*kept).mean())
        return np.stack(units).astype(np.float16), test, float(np.median(seconds or [0.0]))


def _check(workload: Recommender, ranking: Ranking) -> None:
    """That the values are those of the workload."""
    own = workload.evaluate("validation").units
    values = ranking(*workload.embeddings())
    if not np.allclose(np.asarray(own["ndcg_at_20"]), values, atol=1e-5):
        raise SystemExit("the recorder's NDCG@20 is not the workload's")


def record(
    file: Path, name: str, trials: int, repeated: int | None, seeds: int, say: Callable[[str], None] = print
) -> Recording:
    """A recording of ``trials``: the best ``repeated``, and half as many others, with ``seeds`` further seeds.

    The file is written after each :data:`PIECE` of trainings. One that exists is continued.
    """
    train = Recorder(name).trial
    recording = read(file) if file.exists() else None
    given, searched, about = _draw(name, max(trials, len(recording.test) if recording else 0))
    if recording and "epochs" not in recording.about:
        recording = _with_first_epoch(recording, train, given, about["epochs"])
        recording.write(file)
    if recording:
        _check_continues(recording, about, searched, seeds)
        commits = list(dict.fromkeys([*recording.about["commit"].split(), about["commit"]]))
        recording = replace(recording, about=recording.about | {"commit": " ".join(commits)})
    started = time.monotonic()

    def add(piece: Recording, progress: str) -> Recording:
        longer = recording.joined(piece) if recording else piece
        longer.write(file)
        say(f"{progress}, {time.monotonic() - started:.0f} s")
        return longer

    while recording is None or len(recording.test) < trials:
        first = len(recording.test) if recording else 0
        last = min(first + PIECE, trials)
        runs = [train(given[number], seed=number) for number in range(first, last)]
        recording = add(_trials(about, searched[first:last], runs, seeds), f"{last} of {trials} trials")
    again = _to_repeat(recording, repeated)
    for first in range(0, len(again), PIECE):
        numbers = again[first : first + PIECE]
        further = [[train(given[i], seed=int(i) + 1_000_003 * k) for k in range(1, seeds + 1)] for i in numbers]
        recording = add(_repeats(recording, numbers, further), f"{first + len(numbers)} of {len(again)} repeated")
    return recording


def _draw(name: str, trials: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Parameters of the workload and searched parameters of each trial; ``about`` of the recording."""
    search = SEARCHES[name]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [study.ask() for _ in range(trials)]
    given = [search.space(trial) for trial in drawn]
    distributions = drawn[0].distributions.items()
    about = {
        "search": name,
        "dataset": search.dataset,
        "fixed": search.fixed,
        "every": search.every,
        "epochs": search.recorded,
        "metric": "ndcg_at_20",
        "distributions": {key: optuna.distributions.distribution_to_json(each) for key, each in distributions},
        "commit": commit(),
    }
    return given, [dict(trial.params) for trial in drawn], about


def _check_continues(recording: Recording, about: dict[str, Any], searched: list[dict[str, Any]], seeds: int) -> None:
    """That the recording has the same search, trials and number of seeds."""
    same = {key: value for key, value in recording.about.items() if key != "commit"}
    if same != {key: value for key, value in about.items() if key != "commit"}:
        raise SystemExit("the file records another search; give another folder with --out")
    if recording.params != searched[: len(recording.params)] or recording.repeat_test.shape[1] != seeds:
        raise SystemExit("the file records other trials or another number of seeds; give another folder with --out")


def _with_first_epoch(
    recording: Recording, train: Callable[..., Run], given: list[dict[str, Any]], epochs: list[int]
) -> Recording:
    """A recording that lacks the first one of ``epochs``, with it. Its trials are trained again up to the second."""

    def longer(units: np.ndarray[Any, Any], number: int, seed: int) -> np.ndarray[Any, Any]:
        again, _, _ = train(given[number], seed, values=2)
        if not np.allclose(again[1], units[0], atol=1e-3):
            raise SystemExit(f"trial {number} has other values than the recording at epoch {epochs[1]}")
        return np.concatenate([again[:1], units])

    repeats = [
        np.stack([longer(units, number, number + 1_000_003 * k) for k, units in enumerate(each, 1)])
        for number, each in zip(recording.repeated.tolist(), recording.repeat_units)
    ]
    return replace(
        recording,
        about=recording.about | {"epochs": epochs},
        units=np.stack([longer(units, number, number) for number, units in enumerate(recording.units)]),
        repeat_units=np.stack(repeats),
    )


def _trials(about: dict[str, Any], searched: list[dict[str, Any]], runs: list[Run], seeds: int) -> Recording:
    units = np.stack([units for units, _, _ in runs])
    return Recording(
        about,
        searched,
        units,
        np.array([test for _, test, _ in runs], dtype=np.float32),
        np.array([seconds for _, _, seconds in runs], dtype=np.float32),
        np.empty(0, dtype=np.int64),
        np.empty((0, seeds, *units.shape[1:]), dtype=np.float16),
        np.empty((0, seeds), dtype=np.float32),
    )


def _repeats(recording: Recording, numbers: np.ndarray[Any, Any], further: list[list[Run]]) -> Recording:
    return replace(
        recording.first(0, recording.units.shape[2]),
        repeated=numbers,
        repeat_units=np.stack([np.stack([units for units, _, _ in each]) for each in further]),
        repeat_test=np.array([[test for _, test, _ in each] for each in further], dtype=np.float32),
    )


def _to_repeat(recording: Recording, repeated: int | None) -> np.ndarray[Any, Any]:
    """The best trials and others that have no further seeds yet, mixed, so that an interrupted recording has both."""
    repeated = repeated or max(2, len(recording.test) // 10)
    order = np.argsort(-recording.values.max(axis=1))
    random = np.random.default_rng(0)
    others = random.permutation(order[repeated:])[: repeated // 2]
    return random.permutation(np.setdiff1d(np.concatenate([order[:repeated], others]), recording.repeated))


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
    file = options.out / f"{options.search}.npz"
    record(file, options.search, trials, options.repeated, options.seeds, partial(print, flush=True))


if __name__ == "__main__":
    main()
