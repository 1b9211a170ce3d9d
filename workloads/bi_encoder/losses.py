"""The losses by name, and everything that depends on the name. Imports no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.conditional_params import ConditionalParams
from workloads.loss_table import Loss


@dataclass(frozen=True)
class BiEncoderLoss(Loss):
    """A loss of an :class:`~workloads.bi_encoder.loss_calls.EmbeddedBatch`: a scalar, summed over ranks.

    Attributes:
        in_batch: whether the function takes each anchor's score with its own sentence and with the batch's other ones.
    """

    in_batch: bool = False


_IN_BATCH = {"temperature": 0.05, "positive_from": 4.0}
_DEBIASED = {**_IN_BATCH, "tau": 0.01}
_CALLS = "workloads.bi_encoder.loss_calls"
_FORMULAS = "workloads.losses.contrastive"

LOSSES: dict[str, BiEncoderLoss] = {
    "mse": BiEncoderLoss(
        f"{_CALLS}:mse_loss",
        "note 1, 2.4: label / 5; `CosineSimilarityLoss` of sentence-transformers; E-S0", params={"lowest_cosine": 0.0}
    ),
    "cosent": BiEncoderLoss(f"{_CALLS}:cosent_loss", "Su Jianlin, 2022", params={"temperature": 0.05}),
    "cosine_embedding": BiEncoderLoss(
        f"{_CALLS}:cosine_embedding_loss", "note 2.4; Hadsell et al., CVPR 2006",
        params={"positive_from": 4.0, "margin": 0.5},
    ),
    "infonce": BiEncoderLoss(f"{_FORMULAS}:infonce_loss", "thesis (2.3)", params=_IN_BATCH, in_batch=True),
    "decoupled": BiEncoderLoss(f"{_FORMULAS}:decoupled_loss", "thesis 2.2.4.3", params=_IN_BATCH, in_batch=True),
    "dcl": BiEncoderLoss(f"{_FORMULAS}:cosine_dcl_loss", "thesis 5.6.1.4", params=_DEBIASED, in_batch=True),
    "hcl": BiEncoderLoss(
        f"{_FORMULAS}:cosine_hcl_loss", "thesis (5.52)", params={**_DEBIASED, "beta": 0.5}, in_batch=True
    ),
    "bcl": BiEncoderLoss(
        f"{_FORMULAS}:bcl_loss", "thesis (6.31), algorithm 5", params={**_DEBIASED, "alpha": 0.9, "beta": 0.7},
        bounds={"beta": (0.0, 1.0)}, in_batch=True,
    ),
}  # fmt: skip
"""The losses. A temperature of 0.05 is sentence-transformers' scale of 20; τ+ is about the share of positive pairs."""

SCRATCH_LR = 1e-3
"""Default learning rate of an encoder trained from scratch."""

PRETRAINED_LR = 5e-5
"""Default learning rate of a pretrained encoder: the highest one in BERT's paper (A.3). On the dev part of STS-B it is
better than the 2e-5 of the design note (6.6)."""


CONDITIONAL = ConditionalParams(
    lambda: {("loss", name): row.params for name, row in LOSSES.items()},
    {"loss": "mse"},
    {"lr": lambda values: SCRATCH_LR if values.get("encoder", "tiny") == "tiny" else PRETRAINED_LR},
)
