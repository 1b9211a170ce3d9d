"""What the parameters of several workloads share: rules, retrieval datasets, an optimiser. Imports no PyTorch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workloads.conditional_params import ConditionalParams
from workloads.contract import MID_RUN

LearningRate: TypeAlias = Annotated[float, Field(gt=0, le=1, json_schema_extra=MID_RUN)]
WeightDecay: TypeAlias = Annotated[float, Field(ge=0, le=1, json_schema_extra=MID_RUN)]


class WorkloadParams(BaseModel):
    """Parameters of which some are used with a value of another one only, by the rules ``conditional``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    conditional: ClassVar[ConditionalParams]

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        """Give what the choices read, and was not set, the value that goes with them."""
        return cls.conditional.fill_defaults(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _no_idle_parameter(self) -> Self:
        """Refuse a value that nothing would read."""
        if message := self.conditional.unused_parameter_error(self.model_dump()):
            raise ValueError(message)
        return self


class RetrievalParams(WorkloadParams):
    """Parameters of a workload on queries and documents, whose parts are drawn where the source has none."""

    dataset: str
    dataset_unknown: Literal["refuse", "skip"] = Field(
        "refuse", description="Judgements that name documents or queries which are not there."
    )
    split_seed: int = Field(0, ge=0, description="Seed of the parts that are drawn.")
    split_validation: float = Field(
        0.2, gt=0, lt=1, description="Share of the training queries that validate, where the source has no dev."
    )
    split_test: float = Field(
        0.5, gt=0, lt=1, description="Share of all queries that test, where the source has no test part."
    )
