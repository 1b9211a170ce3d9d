"""The note's three stages: which epoch is in which, what it weighs and what it trains. Note 4.5, E-V11."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.contract import Runtime
from workloads.schedule import Progress, advanced, stage_ends, stage_of
from workloads.vera.params import Params

NAMES = ("rank", "evidence", "query")
_LEAST_GAIN = 1e-3  # of the loss, relative, that counts as falling


@dataclass(frozen=True)
class Stage:
    """What an epoch does: ``number`` from 1, factors on the learning rates and weights of the losses.

    The stage has ``length`` epochs after the first ``began``. ``calibrates``: it learns from the queries that the
    ranking has not seen, where some are kept for that.
    """

    number: int
    began: int = 0
    length: int = 1
    lr: float = 1.0
    backbone: float = 1.0
    rank: float = 1.0
    cand: float = 0.0
    query: float = 0.0
    cons: float = 0.0

    @property
    def evidence(self) -> float:
        """Factor on the evidential head's learning rate: 0, that not even decay moves it, where no loss reads it."""
        return float(self.cand > 0 or self.query > 0 or self.cons > 0)

    @property
    def calibrates(self) -> bool:
        return self.number > 1

    def left(self, epochs: float) -> float:
        """What is left of the stage after so many epochs of the run, from 1 to 0."""
        return min(1.0, max(0.0, 1 - (epochs - self.began) / self.length))


class Stages:
    """Where a run is in its stages. A baseline has one, the first, which trains everything."""

    def __init__(self, params: Params, runtime: Runtime) -> None:
        """Plan them."""
        self.params = params
        self.ends: tuple[int, ...] = (runtime.epochs,)
        if params.stage_share is not None:
            self.ends = stage_ends(runtime.epochs, params.stage_share)
        self.progress = Progress(stage_of(1, self.ends))

    def of(self, epoch: int) -> Stage:
        """The stage of an epoch, from 1; with ``stage_switch=plateau`` of the next one."""
        params = self.params
        if params.method != "vera":
            return Stage(1, length=self.ends[-1], cand=float(params.method == "edl"))
        number = self.progress.stage if params.stage_switch == "plateau" else stage_of(epoch, self.ends)
        planned = (0, *self.ends)[number - 1]
        began = self.progress.began if params.stage_switch == "plateau" else planned
        last = self.ends[number - 1] == self.ends[-1]
        length = self.ends[-1] - began if last else self.ends[number - 1] - planned
        factors = {
            name: getattr(params, f"stage_{name}")[number - 1]
            for name in ("lr", "backbone", "rank", "cand", "query", "cons")
        }
        for name in ("cand", "query", "cons"):
            factors[name] *= getattr(params, f"{name}_weight")
        return Stage(number, began, length, **factors)

    def finish(self, epoch: int, loss: float) -> None:
        """Take the loss of a finished epoch into account, and be in the stage of the next one."""
        if self.params.stage_switch == "plateau":
            patience = self.params.stage_patience or 1
            self.progress = advanced(self.progress, epoch, loss, self.ends, patience, _LEAST_GAIN)
        else:
            stage = stage_of(epoch + 1, self.ends)
            self.progress = Progress(stage, (0, *self.ends)[stage - 1])
