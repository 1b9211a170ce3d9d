"""A workload that can be computed by hand: one number descends a parabola, past the validation optimum."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import psutil
import torch
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from orchestrator.errors import UserError
from workloads.contract import MID_RUN, Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.initial_weights import check_shapes
from workloads.seeding import derive

TEST_OPTIMUM = 1.5

TRAINED = "TOY_EPOCHS"
"""Environment variable: file with one line for each started epoch."""
BEST_EPOCH = 3

LOST = "TOY_LOST"
"""Environment variable: file that marks a lost accelerator."""

lost: set[int] = set()
"""Id of the process that lost its accelerator."""


def touch_device() -> None:
    """Fail like CUDA calls after an illegal access."""
    if os.getpid() in lost:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def lose_device() -> None:
    """Lose the accelerator, only the first time."""
    marker = Path(os.environ[LOST])
    if not marker.exists():
        marker.touch()
        lost.add(os.getpid())
    touch_device()


class Clock(threading.local):
    """Replacement of the module ``time``: a clock for each thread that only sleeping advances."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Params(BaseModel):
    """Epochs with faults: ``nan_at`` has a NaN loss, ``hang_at`` never ends, ``hog_at`` allocates all memory.

    At ``lost_at`` the process loses its accelerator, unless the file of :data:`LOST` exists. Micro-batches larger than
    ``fits`` run out of memory in the middle of epoch 2. ``raise_at`` raises, ``refuse_at`` a UserError. ``on_rank``
    limits NaN, hanging and raising to one worker. ``slow``: seconds of an epoch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(0.1, gt=0, lt=1, json_schema_extra=MID_RUN)
    momentum: float = Field(0.5, ge=0, lt=1)
    start: float = 4.0
    optimum: float = 1.0
    batch_size: int = Field(8, ge=1)
    nan_at: int | None = None
    hang_at: int | None = None
    hog_at: int | None = None
    slow: float = 0.0
    lost_at: int | None = None
    raise_at: int | None = None
    refuse_at: int | None = None
    on_rank: int | None = None
    fits: int | None = None

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit newer parameters that are not set, so that recorded runs keep their fingerprints."""
        later = ("hog_at", "lost_at", "raise_at", "refuse_at", "on_rank", "fits")
        return {name: value for name, value in dump(self).items() if name not in later or value is not None}


ToyParams: TypeAlias = Params


def hog(step: int = 16 << 20, margin: int = 256 << 20) -> None:
    """Allocate memory until it fails. The process is limited to ``margin`` bytes more than now."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + margin, hard))
    try:
        taken = []
        while len(taken) * step <= 2 * margin:
            taken.append(bytearray(step))
        raise AssertionError("the limit does not hold")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def hog_device(device: torch.device) -> None:
    """Request all of a GPU's memory at once. Allocates nothing if refused."""
    torch.empty(torch.cuda.get_device_properties(device).total_memory, dtype=torch.uint8, device=device)


class Toy:
    """Heavy-ball descent on x^2, with a draw per step; validation is (x - optimum)^2, test another parabola.

    With the defaults validation is best after epoch 3, and test at another, so the numbers show what was selected. A
    refit has another minimum than the selection.
    """

    Params: ClassVar[type[BaseModel]] = Params
    objective: Objective | tuple[Objective, ...] = Objective("error", "min", refit=True)

    def __init__(self, params: ToyParams, runtime: Runtime) -> None:
        touch_device()
        self.params, self.runtime = params, runtime
        self.x = torch.tensor(params.start, dtype=torch.float64)
        self.velocity = torch.zeros((), dtype=torch.float64)
        self.epoch = 0
        self.test_optimum = TEST_OPTIMUM
        self.calls: list[str] = []

    def train_epoch(self, epoch: int) -> Metrics:
        self.calls.append(f"train {epoch}")
        here = self.params.on_rank in (None, self.runtime.rank)
        while here and epoch == self.params.hang_at:
            time.sleep(3600)
        if here and epoch == self.params.raise_at:
            raise ValueError("the third layer is missing")
        if here and epoch == self.params.refuse_at:
            raise UserError("This node has other bytes of the dataset", fix="Fetch it again")
        touch_device()
        if epoch == self.params.lost_at:
            lose_device()
        if epoch == self.params.hog_at:
            hog() if self.runtime.device.type == "cpu" else hog_device(self.runtime.device)
        if TRAINED in os.environ:
            with open(os.environ[TRAINED], "a") as file:
                file.write(f"{epoch}\n")
        time.sleep(self.params.slow)
        for step in range(self.runtime.steps_per_epoch or 1):
            noise = derive(self.runtime.seed, f"noise {step}", epoch) / 2**63 - 0.5
            slope = 2 * (self.x - (0 if self.runtime.holdout else 0.25)) + 0.1 * noise
            self.velocity = self.params.momentum * self.velocity + slope
            self.x = self.x - self.params.lr * self.velocity
        if (
            self.params.fits is not None
            and epoch == 2
            and self.params.batch_size // self.runtime.accumulate > self.params.fits
        ):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.epoch = epoch
        return {"loss": float("nan") if here and epoch == self.params.nan_at else float(self.x) ** 2}

    def evaluate(self, split: Split) -> Evaluation:
        self.calls.append(split)
        if split == "validation" and not self.runtime.holdout:
            raise ValueError("a refit has no validation split")
        optimum = self.params.optimum if split == "validation" else self.test_optimum
        error = (float(self.x) - optimum) ** 2
        units = {"id": np.arange(3), "error": np.full(3, error)}
        return Evaluation({"error": error, "x": float(self.x)}, units if self.runtime.rank == 0 else {})

    def state_dict(self) -> State:
        return {"x": self.x, "velocity": self.velocity, "epoch": self.epoch}

    def load_state_dict(self, state: State) -> None:
        self.x, self.velocity, self.epoch = state["x"].clone(), state["velocity"].clone(), state["epoch"]

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        check_shapes({"x": self.x.shape}, {name: value.shape for name, value in weights.items()})
        self.x = weights["x"].clone()

    def servable(self) -> Servable:
        return Servable(
            predictor=Path(__file__).parents[1] / "third_party" / "toy_predictor.py",
            weights={"x": self.x},
            config={"optimum": self.params.optimum},
            example={"user": np.arange(2)},
            params={},
            requirements=("numpy",),
        )


class Counted:
    """Mixin of workloads that count, at the start of each, how many others still exist."""

    existing: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    counts: ClassVar[list[int]] = []

    def __init__(self, *args: Any) -> None:
        self.counts.append(len(self.existing))
        super().__init__(*args)
        self.existing.add(self)

    @classmethod
    @contextmanager
    def without_collector(cls) -> Iterator[list[int]]:
        """Gives the counts. Cycles are not collected meanwhile, so what counts is still referred to."""
        cls.existing.clear()
        cls.counts.clear()
        gc.disable()
        try:
            yield cls.counts
        finally:
            gc.enable()


class CountedToy(Counted, Toy):
    """A toy that counts the others."""


class PretrainedToy(Toy):
    """A toy with a pretrained start."""

    pretrained = True
