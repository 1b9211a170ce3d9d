"""Hyperparameters of the recommender. Imports no PyTorch, so that the command line starts quickly.

"Thesis" is the source document, Liu Bin's dissertation on contrastive learning of recommenders.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Backbone: TypeAlias = Literal["mf", "lightgcn"]
Loss: TypeAlias = Literal["bpr"]
Sampler: TypeAlias = Literal["uniform"]


class Params(BaseModel):
    """What a recommender experiment can set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = Field(default="synthetic", min_length=1, description="Interactions to learn from.")
    backbone: Backbone = "mf"
    loss: Loss = "bpr"
    sampler: Sampler = "uniform"
    dim: int = Field(default=32, ge=1, le=4096)
    layers: int = Field(default=1, ge=1, le=8)
    lr: float = Field(default=1e-3, gt=0, le=1)
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    lr_decay_every: int = Field(default=20, ge=1)
    weight_decay: float = Field(default=1e-5, ge=0, le=1)
    batch_size: int = Field(default=1024, ge=1)
    split_seed: int = Field(default=0, ge=0)
    init: float = 0.1

    @model_validator(mode="after")
    def _consistent(self) -> Params:
        if self.backbone == "mf" and self.layers != type(self).model_fields["layers"].default:
            raise ValueError("x")
        return self
