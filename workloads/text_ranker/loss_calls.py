"""The losses by name, of the groups of a step: which pairs they compare, and one value a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.losses.listwise import lambdarank_loss, listwise_softmax_loss
from workloads.losses.ranknet import (
    adaptive_margin_ranking_loss,
    adaptive_ranknet_loss,
    margin_ranking_loss,
    ranknet_loss,
)
from workloads.text_ranker.batches import Groups


@dataclass(frozen=True)
class Block:
    """Scores and grades of b groups of G documents on the device, (b, G); a score of -inf is no document.

    ``pairs`` (3, P) are rows [group, i, j] of documents to compare.
    """

    scores: torch.Tensor
    grades: torch.Tensor
    pairs: torch.Tensor


PairLoss: TypeAlias = Callable[..., torch.Tensor]
"""From s_i, s_j, y_i, y_j, the margin or σ, and the largest gap of grades to one value a pair."""


def _margin(
    s_i: torch.Tensor, s_j: torch.Tensor, y_i: torch.Tensor, y_j: torch.Tensor, m: torch.Tensor, _: float
) -> torch.Tensor:
    return margin_ranking_loss(s_i, s_j, (y_i - y_j).sign(), m)


def _ranknet(
    s_i: torch.Tensor, s_j: torch.Tensor, y_i: torch.Tensor, y_j: torch.Tensor, sigma: torch.Tensor, _: float
) -> torch.Tensor:
    return ranknet_loss(s_i, s_j, (y_i - y_j).sign(), sigma)


PAIRWISE: Mapping[str, PairLoss] = {
    "margin": _margin,
    "adaptive_margin": adaptive_margin_ranking_loss,
    "ranknet": _ranknet,
    "adaptive_ranknet": adaptive_ranknet_loss,
}
"""The losses of pairs."""


def query_losses(block: Block, loss: str, scale: torch.Tensor | float, gap_max: float) -> torch.Tensor:
    """The loss of each query, (b,), 0 for one with nothing to compare.

    A loss of pairs is the mean over the query's pairs, so that every query weighs alike.

    Args:
        scale: the margin or σ, for those that have one.
        gap_max: the largest difference of two grades.
    """
    if loss == "listwise":
        return listwise_softmax_loss(block.scores, block.grades)
    if loss == "lambdarank":
        return lambdarank_loss(block.scores, block.grades, scale)
    row, i, j = block.pairs
    values = PAIRWISE[loss](
        block.scores[row, i], block.scores[row, j], block.grades[row, i], block.grades[row, j], scale, gap_max
    )
    none = values.new_zeros(len(block.scores))
    counts = none.index_add(0, row, torch.ones_like(values))
    return none.index_add(0, row, values) / counts.clamp(min=1)


def pairs(groups: Groups, ties: str | None) -> NDArray[np.int64]:
    """The pairs of documents to compare in each group, (3, P) rows [group, i, j] with i before j, on the host.

    Documents of different grades; by ``ties`` also those of equal ones, where both were judged or all.
    """
    size = groups.docs.shape[1]
    i, j = np.triu_indices(size, 1)
    there, grades, judged = groups.docs >= 0, groups.grades, groups.judged
    wanted = grades[:, i] != grades[:, j]
    if ties == "judged":
        wanted |= judged[:, i] & judged[:, j]
    elif ties == "all":
        wanted |= True
    row, place = np.nonzero(wanted & there[:, i] & there[:, j])
    return np.stack([row, i[place], j[place]])
