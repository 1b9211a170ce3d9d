"""Base classes of workload parameters: conditional parameters, retrieval datasets. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from workloads.conditional_params import ConditionalParams
from workloads.contract import MID_RUN
from workloads.encoders.sources import TINY, check_max_length, input_files

LearningRate: TypeAlias = Annotated[float, Field(gt=0, le=1, json_schema_extra=MID_RUN)]
WeightDecay: TypeAlias = Annotated[float, Field(ge=0, le=1, json_schema_extra=MID_RUN)]


def absolute(path: str, what: str = "file") -> str:
    """``path`` unchanged. Raises ValueError, which names ``what``, if it is relative."""
    if not Path(path).is_absolute():
        raise ValueError(f"a path of a {what} must be absolute. Use {Path(path).absolute()}")
    return path


def comma_separated(value: Any) -> Any:
    """``384,192,96`` as a tuple, and one number as a tuple of it; other values unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return (value,) if isinstance(value, Integral) else value


AbsoluteFile: TypeAlias = Annotated[str, AfterValidator(absolute)]


class WorkloadParams(BaseModel):
    """Parameters, some of which are used only with certain values of others, by the rules in ``conditional``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    conditional: ClassVar[ConditionalParams]

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        """Fill the defaults of the conditional parameters that were not set."""
        return cls.conditional.fill_defaults(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        """Refuse a value that would have no effect."""
        if message := self.conditional.unused_parameter_error(self.model_dump()):
            raise ValueError(message)
        return self


class EncoderParams(WorkloadParams):
    """Parameters of a workload with a text encoder."""

    if TYPE_CHECKING:  # fields of the subclasses, which define their order; dropout None is the encoder's own
        encoder: str
        pooling: Literal["mean", "cls", "max"] | None
        max_length: int
        dropout: float | None

    @model_validator(mode="after")
    def _fits_encoder(self) -> Self:
        """Refuse a length of texts that the encoder does not take."""
        check_max_length(self.encoder, self.max_length)
        return self

    @staticmethod
    def input_files(values: Mapping[str, Any]) -> dict[str, Path]:
        """The encoder's folder."""
        return input_files(values)

    def check_accumulate(self) -> str | None:
        """Say that dropout draws other masks in micro-batches."""
        if self.dropout == 0 or (self.dropout is None and self.encoder == TINY):
            return None
        own = "the encoder's own dropout" if self.dropout is None else f"dropout={self.dropout:g}"
        return (
            f"accumulate=auto: {own} draws other masks in micro-batches, so the result differs as with another seed if "
            "the batch is split; dropout=0 or accumulate=N repeats exactly"
        )


class RetrievalParams(EncoderParams):
    """Parameters of a workload on queries and documents; missing splits are drawn at random."""

    dataset: str
    dataset_unknown: Literal["refuse", "skip"] = Field(
        "refuse", description="Relevance judgements that name missing documents or queries."
    )
    split_seed: int = Field(0, ge=0, description="Seed of the splits that are drawn.")
    split_validation: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of the training queries used for validation where the source has no dev split.",
    )
    split_test: float = Field(
        0.5, gt=0, lt=1, description="Share of all queries used as test split where the source has none."
    )
