"""The plan: how the engine trains and evaluates a workload. Workloads see only the parts in ``Runtime``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from workloads.contract import Precision


class Plan(BaseModel):
    """How long to train, when to evaluate and checkpoint, and what happens at the end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(50, ge=1, le=1_000_000, description="Maximum number of epochs; each ends with a report.")
    patience: int = Field(0, ge=0, description="Stop after this many evaluations without improvement; 0: never.")
    evaluate_every: int = Field(1, ge=1, description="Epochs between two evaluations on the validation split.")
    checkpoint_every: int = Field(
        1, ge=1, description="Epochs between two checkpoints; at least 5 s of training lie between two."
    )
    steps_per_epoch: int | None = Field(
        None, ge=1, description="Optimizer steps in an epoch; unset: one pass over the training data."
    )
    refit: bool | Literal["only"] | None = Field(
        None,
        description="Train again on train + validation for the selected number of epochs before the test split is "
        "opened. Unset: as the workload's objective says; only: skip the selection, train all epochs.",
    )
    objective: tuple[str, ...] = Field(
        (),
        description="What to select by: METRIC, METRIC:min or METRIC:max of the validation split; of several (A,B) "
        "the first selects epochs. Unset: those of the workload.",
    )
    precision: Precision = Field(
        "fp32",
        description="Arithmetic: fp32; tf32, matrix products and convolutions of training on CUDA; bf16, the forward "
        "pass. Evaluation is fp32 with tf32.",
    )
    deterministic: bool = Field(
        False, description="Deterministic algorithms only; an operation without one ends the run."
    )
    accumulate: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        1, description="Micro-batches that one global batch is split into; auto: as few as fit into the memory."
    )
    init: str | None = Field(
        None, description="Start from the weights of a model: MODEL@ALIAS, MODEL/VERSION, or the id of a run or sweep."
    )
    log_every: int = Field(
        0, ge=0, description="Steps of which the mean loss is logged to MLflow, by step and time; 0: epochs only."
    )
    abstention_part: float = Field(
        0.0, ge=0, lt=1,
        description="Share of the queries for training and validation that nothing is trained, selected or refitted "
        "on: a served model promises a risk by them (predict ... risk=0.1).",
    )  # fmt: skip
    decide_at: tuple[int, ...] = Field(
        (), description="Epochs at which a scheduler decides; set by the sweep, not by users."
    )

    @field_validator("objective", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Names from text, without ``validation/``, so that both spellings are the same plan."""
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
            return value
        return tuple(part.strip().removeprefix("validation/") for part in parts)

    def evaluates(self, epoch: int) -> bool:
        """Whether the validation split is evaluated after ``epoch`` (counted from 1)."""
        return epoch % self.evaluate_every == 0 or epoch == self.epochs or epoch in self.decide_at


PLAN_KEYS = tuple(name for name in Plan.model_fields if name != "decide_at")
"""Settings that ``key=value`` accepts in addition to the workload's parameters."""
