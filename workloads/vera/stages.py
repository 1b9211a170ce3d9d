"""The note's three stages: the stage of each epoch, with its loss weights and learning rates. Note 4.5, E-V11."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.contract import Runtime
from workloads.schedule import Progress, advanced, stage_ends, stage_of
from workloads.vera.params import Params

_LEAST_GAIN = 1e-3  # smallest relative decrease of the loss that counts as progress


@dataclass(frozen=True)
class Stage:
    """A stage: its ``number`` from 1, factors on the learning rates, and weights of the losses.

    It has ``length`` epochs after the first ``began`` epochs.
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
        """Factor on the evidential head's learning rate: 0 if no loss uses it, so that weight decay does not either."""
        return float(self.cand > 0 or self.query > 0 or self.cons > 0)

    @property
    def calibrates(self) -> bool:
        """Whether the stage trains on the calibration queries."""
        return self.number > 1

    def left(self, epochs: float) -> float:
        """The fraction of the stage that is left after ``epochs`` epochs of the run, from 1 to 0."""
        return min(1.0, max(0.0, 1 - (epochs - self.began) / self.length))


class Stages:
    """Tracks the current stage of a run. A baseline has a single stage, which trains everything."""

    def __init__(self, params: Params, runtime: Runtime) -> None:
        """Plan the stages of a run."""
        self.params = params
        self.ends: tuple[int, ...] = (runtime.epochs,)
        if params.stage_share is not None:
            self.ends = stage_ends(runtime.epochs, params.stage_share)
        self.progress = Progress(stage_of(1, self.ends))

    def of(self, epoch: int) -> Stage:
        """The stage of ``epoch``, from 1. With ``stage_switch=plateau`` it must be the next epoch."""
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
        """Record the loss of a finished epoch and move on to the stage of the next one."""
        if self.params.stage_switch == "plateau":
            patience = self.params.stage_patience or 1
            self.progress = advanced(self.progress, epoch, loss, self.ends, patience, _LEAST_GAIN)
        else:
            stage = stage_of(epoch + 1, self.ends)
            self.progress = Progress(stage, (0, *self.ends)[stage - 1])
