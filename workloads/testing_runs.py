"""Build and train the workloads of the conformance suite, in this process or on a rank."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from workloads import distributed
from workloads.contract import Evaluation, Metrics, Runtime, State, Workload
from workloads.testing_distributed import WORLD
from workloads.testing_states import through_plain_data


def values(result: Metrics | Evaluation) -> dict[str, float]:
    """The scalars of a result."""
    return dict(result.metrics if isinstance(result, Evaluation) else result)


@dataclass(frozen=True)
class Reference:
    """The workload trained for two epochs and evaluated; computed once for all tests of a class."""

    rows: tuple[dict[str, float], ...]
    """The metrics of both epochs of training."""
    states: tuple[State, ...]
    """The state after each of them."""
    validation: tuple[dict[str, float], ...]
    """Two evaluations on validation after them."""
    test: Evaluation
    trained: Workload
    """The workload after both epochs. Tests must not change it."""


@dataclass(frozen=True)
class TwoEpochs:
    """The metrics of two epochs and the state after them."""

    rows: Mapping[str, float]
    """Each metric of each epoch, by its name and the epoch."""
    state: State

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, float]], state: State) -> Self:
        flat = {f"{name}@{epoch}": value for epoch, row in enumerate(rows, 1) for name, value in row.items()}
        return cls(flat, through_plain_data(state))


def build_workload(workload: type[Any], params: Mapping[str, Any], data: Path, runtime: Mapping[str, Any]) -> Workload:
    built: Workload = workload(
        workload.Params(**params), Runtime(device=torch.device("cpu"), data=data, **{"seed": 7, **runtime})
    )
    return built


def train_on_rank(
    rank: int, workload: type[Any], params: Mapping[str, Any], data: Path, epochs: int, state: State
) -> tuple[TwoEpochs, Evaluation]:
    """Train on a rank, then evaluate a model that another process trained."""
    runtime = {"epochs": epochs, "rank": rank, "world_size": WORLD, "broadcast": distributed.broadcast}
    built = build_workload(workload, params, data, runtime)
    trained = train_twice(built)
    built.load_state_dict(state)
    return trained, built.evaluate("validation")


def train_twice(workload: Workload) -> TwoEpochs:
    rows = [values(workload.train_epoch(epoch)) for epoch in (1, 2)]
    return TwoEpochs.of(rows, workload.state_dict())


def seed_global_streams(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
