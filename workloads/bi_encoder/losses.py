"""The losses by name, and everything that depends on the name. Imports no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from workloads.conditional_params import ConditionalParams, rules_of
from workloads.encoders.sources import TINY, pooling_of
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


OF_CROSS = ("mse", "cosent")
"""Losses that need similarities only, as a cross-encoder has."""


def scoring_error(scoring: str, loss: str, positives: str, lowest_cosine: float | None) -> str | None:
    """A sentence about what a cross-encoder cannot be trained with, or None."""
    if scoring == "bi":
        return None
    if loss not in OF_CROSS or positives != "scored":
        given = f"loss={loss}" if loss not in OF_CROSS else f"positives={positives}"
        usable = " or ".join(f"loss={name}" for name in OF_CROSS)
        return (
            f"scoring=cross has no vectors of sentences, which {given} needs. Set {usable} with positives=scored, or "
            "scoring=bi"
        )
    if lowest_cosine is not None and lowest_cosine != 0:
        return f"lowest_cosine={lowest_cosine:g} is no target of scoring=cross, whose score is in [0, 1]. Set it to 0"
    return None


def dims_error(dims: tuple[int, ...] | None, scoring: str, encoder: str, length: int | None) -> str | None:
    """A sentence about lengths of vectors that cannot be trained, or None. ``length``: of the encoder's, if known."""
    if dims is None:
        return None
    text = ",".join(map(str, dims))
    if scoring == "cross":
        return f"scoring=cross has no vectors, which dims={text} cuts. Remove dims, or set scoring=bi"
    if not dims or dims[-1] < 1 or any(one <= other for one, other in pairwise(dims)):
        return f"dims={text} are not lengths of vectors from the longest to the shortest, such as 384,192,96"
    if length is not None and dims[0] != length:
        return f"dims={text} does not begin with {length}, the length of a vector of encoder {encoder!r}"
    return None


def hard_error(count: int, margin: float | None, loss: str, positives: str, scoring: str) -> str | None:
    """A sentence about hard negatives that cannot be used, or None."""
    if count and not LOSSES[loss].in_batch:
        usable = " or ".join(f"loss={name}" for name, row in LOSSES.items() if row.in_batch)
        both = f"scoring=bi, and {usable}" if scoring == "cross" else usable
        return f"hard_negatives={count} are negatives in the batch, which loss={loss} has not. Set {both}"
    if count and positives == "dropout":
        return f"hard_negatives={count} need scores of pairs, which positives=dropout has not. Set positives=scored"
    if margin is not None and not count:
        return f"hard_margin={margin:g} has no effect without hard negatives. Set hard_negatives too"
    return None


def batch_error(batch_size: int, loss: str, hard_negatives: int) -> str | None:
    """A sentence about a batch of one pair, of which a loss that compares pairs is 0, or None."""
    if batch_size > 1 or hard_negatives or not (LOSSES[loss].in_batch or loss == "cosent"):
        return None
    return f"batch_size=1 leaves loss={loss} no other pair to compare with, so it is 0. Set batch_size=2 or more"


def positives_error(positives: str, loss: str, dropout: float | None, encoder: str) -> str | None:
    """A sentence about plain sentences that cannot be trained on, or None."""
    if positives == "scored":
        return None
    if not LOSSES[loss].in_batch:
        usable = " or ".join(f"loss={name}" for name, row in LOSSES.items() if row.in_batch)
        return f"positives=dropout has no scores, which loss={loss} needs. Set {usable}"
    if dropout == 0 or (dropout is None and encoder == TINY):
        return (
            "positives=dropout encodes a sentence twice, and without dropout both vectors are equal: "
            f"{'encoder=tiny has none of its own' if dropout is None else 'dropout=0'}. Set dropout=0.1"
        )
    return None


def check_positives(positives: str, plain: bool) -> None:
    """Raises ValueError if the training part is ``plain`` sentences, which have no scored pairs."""
    if plain and positives == "scored":
        raise ValueError(
            "positives=scored needs scored pairs, and the training part has plain sentences. Set positives=dropout, "
            "and a loss in the batch such as loss=infonce"
        )


SCRATCH_LR = 1e-3
"""Default learning rate of an encoder trained from scratch."""

PRETRAINED_LR = 5e-5
"""Default learning rate of a pretrained encoder: the highest one in BERT's paper (A.3). On the dev part of STS-B it is
better than the 2e-5 of the design note (6.6)."""


CONDITIONAL = ConditionalParams(
    lambda: rules_of({"loss": LOSSES}),
    {"loss": "mse"},
    {
        "lr": lambda values: SCRATCH_LR if values.get("encoder", "tiny") == "tiny" else PRETRAINED_LR,
        "pooling": pooling_of,
    },
)
