"""Optuna's samplers and pruners by name, and the rungs of each scheduler."""

from __future__ import annotations

import hashlib
import math
import warnings
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from orchestrator.config.spec import Sampler, Scheduler

REDUCTION = 3
"""ASHA and Hyperband keep the best 1/REDUCTION at each rung."""

STARTUP = 5
"""Complete trials before the median pruner stops a trial."""

PARTS = 10
"""Number of parts of a trial after which the median pruner decides or a population meets."""


class ReplayedCmaEs(CmaEsSampler):  # type: ignore[misc]
    """CMA-ES that rebuilds its state from the trials. Optuna's sampler stores a pickle in the study instead.

    Complete generations are replayed, which takes milliseconds; further points are drawn as usual.
    """

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> None:
        self._completed = completed_trials

    def _init_optimizer(self, trans: Any, direction: StudyDirection) -> Any:
        optimizer = super()._init_optimizer(trans, direction)
        sign = 1.0 if direction == StudyDirection.MINIMIZE else -1.0
        size = optimizer.population_size
        while len(drawn := self._get_solution_trials(self._completed, optimizer.generation)) >= size:
            optimizer.tell([(trans.transform(t.params), sign * float(t.value)) for t in drawn[:size]])
        return optimizer


def rungs(epochs: int, scheduler: Scheduler) -> tuple[int, ...]:
    """Epochs at which ``scheduler`` decides, all below ``epochs``.

    ASHA and Hyperband: a ninth of the epochs, then three times as many, up to half of them. Median and PBT: each
    tenth.
    """
    if scheduler == "none":
        return ()
    if scheduler in ("median", "pbt"):
        every = max(1, epochs // PARTS)
        return tuple(range(every, epochs, every))
    first = max(1, epochs // REDUCTION**2)
    epochs_of_rungs = []
    while first <= epochs // 2:
        epochs_of_rungs.append(first)
        first *= REDUCTION
    return tuple(epochs_of_rungs)


def pruner(scheduler: Scheduler, decide_at: tuple[int, ...], epochs: int) -> BasePruner:
    """Optuna's pruner of ``scheduler``."""
    if not decide_at or scheduler in ("none", "pbt"):
        return NopPruner()
    if scheduler == "median":
        return MedianPruner(n_startup_trials=STARTUP)
    if scheduler == "hyperband":
        return HyperbandPruner(min_resource=decide_at[0], max_resource=epochs, reduction_factor=REDUCTION)
    return SuccessiveHalvingPruner(min_resource=decide_at[0], reduction_factor=REDUCTION, min_early_stopping_rate=0)


def brackets(epochs: int, scheduler: Scheduler) -> list[tuple[float, tuple[int, ...]]]:
    """Brackets of a halving scheduler: the share of trials in each, and its rungs. ASHA has one bracket."""
    decide_at = rungs(epochs, scheduler)
    if scheduler != "hyperband" or not decide_at:
        return [(1.0, decide_at)]
    count = math.floor(math.log(epochs / decide_at[0], REDUCTION)) + 1
    # As Optuna's HyperbandPruner, whose brackets are private: the relative numbers of trials, algorithm 1 of the paper.
    sizes = [math.ceil(count * REDUCTION ** (count - 1 - k) / (count - k)) for k in range(count)]
    return [(size / sum(sizes), decide_at[bracket:]) for bracket, size in enumerate(sizes)]


def sampler(name: Sampler, seed: int, *, conditional: bool = False) -> BaseSampler:
    """The sampler of one trial. For ``conditional`` spaces TPE models groups of parameters."""
    if name == "gp":
        return GPSampler(seed=seed)
    if name == "cmaes":
        return ReplayedCmaEs(seed=seed)
    if name == "tpe":
        with warnings.catch_warnings():  # `group` is marked experimental
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return TPESampler(seed=seed, multivariate=True, group=True) if conditional else TPESampler(seed=seed)
    return RandomSampler(seed=seed)


def seed_of(seed: int, number: int) -> int:
    """The sampler's seed for trial ``number``. It needs no state, so nothing is lost with a process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
