"""Optuna's samplers by name."""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from orchestrator.config import user_code
from orchestrator.search import user_search
from orchestrator.search.spaces import Survey

STARTUP = 5
"""Number of ended trials from which TPE learns. Optuna's default is 10; ``benchmarks/replay`` compares the two."""


class ReplayedCmaEs(CmaEsSampler):  # type: ignore[misc]
    """CMA-ES that rebuilds its state from the trials. Optuna's sampler stores a pickle in the study instead.

    Complete generations are replayed, in time proportional to the number of trials; further points are drawn as usual.
    Outside of ray_compat.py this is the only use of what a library does not document: Optuna has no public hook for the
    state of a sampler, and without this class a resumed sweep would unpickle what its study holds.
    """

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> None:
        self._completed = completed_trials

    def _init_optimizer(self, trans: Any, direction: StudyDirection) -> Any:
        optimizer = super()._init_optimizer(trans, direction)
        sign = 1.0 if direction == StudyDirection.MINIMIZE else -1.0
        size = optimizer.population_size
        generations: dict[int, list[FrozenTrial]] = defaultdict(list)  # Optuna's search passes all trials for each
        for trial in self._completed:
            generations[trial.system_attrs.get(self._attr_key_generation, -1)].append(trial)
        while len(drawn := generations[optimizer.generation]) >= size:
            optimizer.tell([(trans.transform(t.params), sign * float(t.value)) for t in drawn[:size]])
        return optimizer


def sampler(name: str, seed: int, *, conditional: bool = False) -> BaseSampler:
    """The sampler of one trial. For ``conditional`` spaces TPE models groups of parameters."""
    if user_code.is_named(name):
        return user_search.sampler(name, seed)
    if name == "gp":
        return GPSampler(seed=seed, warn_independent_sampling=False)  # drawn_at_random says it once
    if name == "cmaes":
        return ReplayedCmaEs(seed=seed, warn_independent_sampling=False)
    if name == "tpe":
        with warnings.catch_warnings():  # `group` is marked experimental
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True, group=conditional)
    return RandomSampler(seed=seed)


def drawn_at_random(name: str, survey: Survey) -> str | None:
    """A sentence about the parameters that a sampler draws at random, if the surveyed space has some."""
    kinds = [kind for each in survey.distributions.values() for kind in each]
    if name == "cmaes" and (survey.conditional or any(isinstance(kind, CategoricalDistribution) for kind in kinds)):
        return "The sampler cmaes learns the numbers that every trial has, and draws the other parameters at random"
    if name == "gp" and survey.conditional:
        return "The sampler gp learns the parameters that every trial has, and draws the others at random"
    return None


def seed_of(seed: int, number: int) -> int:
    """The sampler's seed for trial ``number``. It needs no state, so nothing is lost with a process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
