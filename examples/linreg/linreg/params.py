"""Parameters of a run. Imports no PyTorch: names, types and bounds are checked before anything starts."""

from pydantic import BaseModel, ConfigDict, Field

from workloads.contract import MID_RUN


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(0.05, gt=0, le=1, description="Learning rate.", json_schema_extra=MID_RUN)
    batch_size: int = Field(32, ge=1, le=256, description="Points in a step, of all workers together.")
