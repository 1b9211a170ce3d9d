"""The workload: a class with two attributes and six methods, without a base class (``workloads/contract.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from linreg.params import Params
from workloads.checks import check_batch, check_split
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.distributed import reduce_sum
from workloads.initial_weights import copy_weights
from workloads.seeding import generator

SLOPES = torch.tensor([2.0, -1.0, 0.5])
SIZES = {"train": 256, "validation": 64, "test": 64}


def points(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x (n, 3) and y (n,) of a split, the same in every run."""
    drawn = generator(0, split)
    x = torch.randn(SIZES[split], 3, generator=drawn)
    return x, x @ SLOPES + 0.1 * torch.randn(len(x), generator=drawn)


class LinReg:
    Params: ClassVar[type[Params]] = Params
    objective: ClassVar[Objective] = Objective("mse", "min", refit=True)

    def __init__(self, params: Params, runtime: Runtime) -> None:
        check_batch(params.batch_size, runtime, equal_parts=True)
        self.params, self.runtime = params, runtime
        parts = [points("train")] if runtime.holdout else [points("train"), points("validation")]  # a refit has both
        self.x, self.y = (torch.cat(columns).to(runtime.device) for columns in zip(*parts))
        self.held = {split: points(split) for split in ("validation", "test")}
        self.model = torch.nn.Linear(3, 1).to(runtime.device)
        with torch.no_grad():  # from the run's seed alone, never from a global stream
            self.model.weight.copy_(torch.randn(1, 3, generator=generator(runtime.seed, "init")))
            self.model.bias.zero_()

    def train_epoch(self, epoch: int) -> Metrics:
        size = self.params.batch_size
        runtime = self.runtime
        in_a_pass = len(self.x) // size
        steps = runtime.steps_per_epoch or in_a_pass
        total = torch.zeros((), device=runtime.device)
        for step in range((epoch - 1) * steps, epoch * steps):
            number, position = divmod(step, in_a_pass)
            order = torch.randperm(len(self.x), generator=generator(runtime.seed, "order", number))
            mine = order[position * size : (position + 1) * size].chunk(runtime.world_size)[runtime.rank]
            self.model.zero_grad()
            for rows in mine.to(runtime.device).chunk(runtime.accumulate):
                loss = self._errors(self.x[rows], self.y[rows]).sum() / size
                loss.backward()
                total += loss.detach()
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter -= self.params.lr * reduce_sum(parameter.grad)  # summed over all workers
        return {"loss": float(reduce_sum(total)) / steps}

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        check_split(split, self.runtime)
        x, y = (column.to(self.runtime.device) for column in self.held[split])
        errors = self._errors(x, y).cpu()
        units = {"id": torch.arange(len(errors)).numpy(), "mse": errors.numpy()}
        return Evaluation({"mse": float(errors.mean())}, units if self.runtime.rank == 0 else {})

    def state_dict(self) -> State:
        return {"model": dict(self.model.state_dict())}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"])

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        copy_weights(self.model, weights)

    def servable(self) -> Servable:
        return Servable(
            predictor=Path(__file__).with_name("predictor.py"),
            weights=self.model.state_dict(),
            config={"columns": ["x1", "x2", "x3"]},
            example=dict(zip(["x1", "x2", "x3"], self.held["test"][0][:2].numpy().T)),
            params={},
            requirements=("numpy", "pandas"),
        )

    def _errors(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.model(x)[:, 0] - y) ** 2
