"""The plan: how the engine runs a workload. It belongs to the engine; workloads see only what Runtime carries."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from workloads.contract import Precision


class Plan(BaseModel):
    """How long to train, when to evaluate and checkpoint, and what happens at the end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(50, ge=1, le=1_000_000, description="Epochs at most (an epoch lies between two reports).")
    patience: int = Field(0, ge=0, description="Stop after so many evaluations without improvement; 0: never.")
    evaluate_every: int = Field(1, ge=1, description="Epochs between two evaluations on the validation split.")
    checkpoint_every: int = Field(
        1, ge=1, description="Epochs between two checkpoints, and never more often than every 5 s of training."
    )
    steps_per_epoch: int | None = Field(
        None, ge=1, description="Optimiser steps in an epoch; unset: one pass over the training data."
    )
    refit: bool | Literal["only"] | None = Field(
        None,
        description="Train once more on train + validation for the selected number of epochs before test is "
        "opened. Unset: as the workload's objective says; only: skip the selection, train all epochs.",
    )
    objective: tuple[str, ...] = Field(
        (),
        description="What to select by: METRIC, METRIC:min or METRIC:max of the validation split; of several (A,B) "
        "the first selects epochs. Unset: the workload's own.",
    )
    precision: Precision = Field("fp32", description="Arithmetic of the forward pass: fp32 or bf16.")
    accumulate: int = Field(1, ge=1, description="Micro-batches that one global batch is split into.")
    decide_at: tuple[int, ...] = Field(
        (), description="Epochs at which a scheduler decides; set by the sweep, never by hand."
    )

    @field_validator("objective", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    def evaluates(self, epoch: int) -> bool:
        """Whether the validation split is evaluated after ``epoch`` (counted from 1)."""
        return epoch % self.evaluate_every == 0 or epoch == self.epochs or epoch in self.decide_at


PLAN_KEYS = tuple(name for name in Plan.model_fields if name != "decide_at")
"""What ``key=value`` on the command line may set beside the workload's parameters."""
