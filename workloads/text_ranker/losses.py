"""The losses by name, and everything that depends on the name. Imports no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.conditional_params import ConditionalParams, Rules, rules_of
from workloads.encoders.sources import pooling_of
from workloads.loss_table import Loss

_PAIR = ("s_i", "s_j", "preference", "scale")
_GRADED = ("s_i", "s_j", "y_i", "y_j", "scale", "gap_max")


@dataclass(frozen=True)
class RankerLoss(Loss):
    """A pairwise loss, with one value per pair, or a listwise loss, with one value per query.

    Attributes:
        pairs: whether the loss is pairwise.
    """

    pairs: bool = False


_MARGIN = {"margin": 1.0, "learnable": False}
_SIGMA = {"sigma": 1.0, "learnable": False}
_RANKNET = {**_SIGMA, "ties": "none"}

_PAIRWISE = "workloads.losses.ranknet"
_LISTWISE = "workloads.losses.listwise"

LOSSES: dict[str, RankerLoss] = {
    "margin": RankerLoss(
        f"{_PAIRWISE}:margin_ranking_loss", "margin ranking loss, left blank in the note; E-R3", _PAIR, _MARGIN,
        pairs=True,
    ),
    "adaptive_margin": RankerLoss(
        f"{_PAIRWISE}:adaptive_margin_ranking_loss", "left blank in the note; E-R4", _GRADED, _MARGIN, pairs=True
    ),
    "ranknet": RankerLoss(
        f"{_PAIRWISE}:ranknet_loss", "RankNet; the sign of the note's formula by E-R1", _PAIR, _RANKNET, pairs=True
    ),
    "adaptive_ranknet": RankerLoss(
        f"{_PAIRWISE}:adaptive_ranknet_loss", "left blank in the note; E-R5", _GRADED, _RANKNET, pairs=True
    ),
    "listwise": RankerLoss(
        f"{_LISTWISE}:listwise_softmax_loss", "softmax cross entropy, not in the note; Bruch et al., ICTIR 2019",
        ("scores", "grades"),
    ),
    "lambdarank": RankerLoss(
        f"{_LISTWISE}:lambdarank_loss", "not in the note; Burges, MSR-TR-2010-82", ("scores", "grades", "scale"), _SIGMA
    ),
}  # fmt: skip


def _rules() -> Rules:
    return {
        **rules_of({"loss": LOSSES}),
        ("scoring", "cross"): {"pooling": "cls"},
        ("scoring", "bi"): {"pooling": pooling_of, "temperature": 0.05},
        ("long_documents", "best_passage"): {"passage_words": 100, "passage_stride": 50, "passages": 8},
    }


CONDITIONAL = ConditionalParams(_rules, {"loss": "ranknet", "scoring": "cross", "long_documents": "cut"})
