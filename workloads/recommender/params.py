"""Hyperparameters of the recommender. Imports no PyTorch, so that the command line starts quickly.

The source document is Liu Bin's dissertation on contrastive learning for recommendation ("thesis").
"""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Backbone: TypeAlias = Literal["mf", "lightgcn"]
Loss: TypeAlias = Literal["bpr"]
Sampler: TypeAlias = Literal["uniform"]


class Params(BaseModel):
    """What an experiment with the recommender can set.

    The defaults of ``lr`` and ``weight_decay`` are the pair of a grid with the best mean over both backbones on the
    validation split of MovieLens-100K; alone, matrix factorisation likes a weight decay of 3e-5, LightGCN of 5e-6.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dataset: str = Field(
        default="synthetic", min_length=1, description="Interactions to learn from; `data list` has the names."
    )
    backbone: Backbone = Field(
        default="mf",
        description="Matrix factorisation (thesis algorithm 1) or LightGCN (He et al., SIGIR 2020; thesis 4.5.1.2).",
    )
    loss: Loss = Field(
        default="bpr", description="bpr: Bayesian personalised ranking (Rendle et al., UAI 2009; thesis (2.2))."
    )
    sampler: Sampler = Field(
        default="uniform",
        description="uniform: a negative is any item that the user has not interacted with (RNS, thesis 4.5.1.2).",
    )
    dim: int = Field(default=32, ge=1, le=4096, description="Dimension d of the embeddings (32: thesis 4.5.1.2).")
    layers: int = Field(
        default=1,
        ge=1,
        le=8,
        description="Propagations of LightGCN (1: thesis 4.5.1.2); matrix factorisation has none.",
    )
    lr: float = Field(default=2e-3, gt=0, le=1, description="Adam's learning rate (thesis 4.5.1.2: 0.01 for LightGCN).")
    lr_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Factor on lr every lr_decay_every epochs; 1 is constant (thesis 4.5.1.2: 0.1 for LightGCN).",
    )
    lr_decay_every: int = Field(
        default=20, ge=1, description="Epochs between two decays of lr (20: thesis 4.5.1.2, LightGCN)."
    )
    weight_decay: float = Field(
        default=1e-5,
        ge=0,
        le=1,
        description="Adam's coupled L2, on whole tables as in the source's code (1e-5: thesis 4.5.1.2, LightGCN).",
    )
    batch_size: int = Field(
        default=1024,
        ge=1,
        le=2**24,
        description="Interactions in a global batch, over all workers (thesis 4.5.1.2: 1, 128 and 1024).",
    )
    split_seed: int = Field(
        default=0, ge=0, description="Seed of the validation split: 10% of each user's training interactions."
    )

    @model_validator(mode="after")
    def _no_idle_parameter(self) -> Self:
        """Refuse a value that nothing would read."""
        fields = type(self).model_fields
        if self.backbone == "mf" and self.layers != fields["layers"].default:
            raise ValueError(
                f"layers={self.layers} has no effect with backbone=mf. Drop layers, or set backbone=lightgcn"
            )
        if self.lr_decay == 1 and self.lr_decay_every != fields["lr_decay_every"].default:
            raise ValueError(
                f"lr_decay_every={self.lr_decay_every} has no effect with lr_decay=1. "
                "Drop lr_decay_every, or set lr_decay below 1"
            )
        return self
