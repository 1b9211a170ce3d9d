"""A workload without training, so that a trial's time is the orchestrator's.

It is found like any third-party workload, through the entry point next to this file: with this folder on PYTHONPATH it
counts as installed, also for the workers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from workloads.catalog import Entry
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State

if TYPE_CHECKING:
    import optuna

ENTRY = Entry("idle:IdleParams", "idle:Idle", "Does nothing.")

if "IDLE_REPORT_ALL" in os.environ:
    # Reports of very short epochs are combined, about one per second. Peers send each report separately, and so does
    # this workload when reports are compared.
    from orchestrator.engine import loop

    loop.REPORT_SECONDS = 0.0


class IdleParams(BaseModel):
    """One searched parameter, eight others without effect, and the time of an epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    x: float = Field(default=0.5, ge=0, le=1, description="Where the parabola is read.")
    rate: float = Field(default=0.01, gt=0, le=1, description="Unused.")
    decay: float = Field(default=0.01, gt=0, le=1, description="Unused.")
    dropout: float = Field(default=0.5, ge=0, le=1, description="Unused.")
    momentum: float = Field(default=0.5, ge=0, le=1, description="Unused.")
    layers: int = Field(default=2, ge=1, le=8, description="Unused.")
    width: int = Field(default=64, ge=8, le=512, description="Unused.")
    kind: str = Field(default="a", description="Unused.")
    size: int = Field(default=128, ge=1, description="Unused.")
    seconds: float = Field(default=0.0, ge=0, description="An epoch's length.")


class Idle:
    """Reports a parabola that rises with the epoch."""

    Params: ClassVar[type[BaseModel]] = IdleParams
    objective: Objective = Objective("score", "max", refit=True)

    def __init__(self, params: IdleParams, runtime: Runtime) -> None:
        self.params, self.epoch = params, 0

    def train_epoch(self, epoch: int) -> Metrics:
        self.epoch = epoch
        time.sleep(self.params.seconds)
        return {"loss": 1 / epoch}

    def evaluate(self, split: Split) -> Evaluation:
        return Evaluation({"score": self.epoch - (self.params.x - 0.3) ** 2})

    def state_dict(self) -> State:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: State) -> None:
        self.epoch = state["epoch"]

    def servable(self) -> Servable:
        import numpy as np
        import torch

        return Servable(
            predictor=Path(__file__).with_name("predictor.py"),
            weights={"x": torch.tensor(self.params.x)},
            config={},
            example={"row": np.arange(2)},
            params={},
            requirements=("numpy", "pandas"),
        )


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The search space of every contestant: one number."""
    return {"x": trial.suggest_float("x", 0, 1)}


def nine(trial: optuna.Trial) -> dict[str, Any]:
    """Nine parameters of all types, as in a large search space."""
    return {
        "x": trial.suggest_float("x", 0, 1),
        "rate": trial.suggest_float("rate", 1e-5, 1e-1, log=True),
        "decay": trial.suggest_float("decay", 1e-7, 1e-2, log=True),
        "dropout": trial.suggest_float("dropout", 0, 0.9),
        "momentum": trial.suggest_float("momentum", 0, 0.99),
        "layers": trial.suggest_int("layers", 1, 8),
        "width": trial.suggest_int("width", 8, 512, log=True),
        "kind": trial.suggest_categorical("kind", ["a", "b", "c"]),
        "size": trial.suggest_categorical("size", [64, 128, 256, 512]),
    }
