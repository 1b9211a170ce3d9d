"""The loss of each query of a batch, by the name of the loss, and the pairs that pairwise losses compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.text_ranker.batches import Groups
from workloads.text_ranker.losses import LOSSES


@dataclass(frozen=True)
class GroupBlock:
    """Scores and grades of b groups of G documents, (b, G), on the device. The score of padding is -inf.

    ``pairs`` (3, P): the rows are group, i and j of the documents to compare.
    """

    scores: torch.Tensor
    grades: torch.Tensor
    pairs: torch.Tensor


class PairScores(NamedTuple):
    """Scores ``s`` and grades ``y`` of P pairs, (P,) each; ``scale``: the margin or σ; ``gap_max``: see RankerData."""

    s_i: torch.Tensor
    s_j: torch.Tensor
    y_i: torch.Tensor
    y_j: torch.Tensor
    scale: torch.Tensor | float
    gap_max: float

    @property
    def preference(self) -> torch.Tensor:
        """S: the sign of the difference between the grades, (P,)."""
        return (self.y_i - self.y_j).sign()


class ListScores(NamedTuple):
    """Scores and grades of b groups, (b, G); ``scale``: σ, for a loss that has one."""

    scores: torch.Tensor
    grades: torch.Tensor
    scale: torch.Tensor | float


def query_losses(block: GroupBlock, loss: str, scale: torch.Tensor | float, gap_max: float) -> torch.Tensor:
    """The loss of each query, (b,); 0 for a query with nothing to compare.

    A pairwise loss is averaged over the query's pairs, so that all queries have equal weight.

    Args:
        scale: the margin or σ.
        gap_max: the largest difference between two grades.
    """
    row = LOSSES[loss]
    values: torch.Tensor
    if not row.pairs:
        values = row.compute(ListScores(block.scores, block.grades, scale), {})
        return values
    group, i, j = block.pairs
    s_i = block.scores[group, i]
    s_j = block.scores[group, j]
    y_i = block.grades[group, i]
    y_j = block.grades[group, j]
    values = row.compute(PairScores(s_i, s_j, y_i, y_j, scale, gap_max), {})
    none = values.new_zeros(len(block.scores))
    counts = none.index_add(0, group, torch.ones_like(values))
    return none.index_add(0, group, values) / counts.clamp(min=1)


def pairs(groups: Groups, ties: str | None) -> NDArray[np.int64]:
    """The pairs of documents to compare in each group: rows group, i and j, with i < j; (3, P), on the host.

    These are the documents of different grades, and with ``ties`` also those of equal grades: where both are judged
    ("judged"), or all of them ("all").
    """
    size = groups.docs.shape[1]
    i, j = np.triu_indices(size, 1)
    real = groups.docs >= 0
    compared = groups.grades[:, i] != groups.grades[:, j]
    if ties == "judged":
        compared |= groups.judged[:, i] & groups.judged[:, j]
    elif ties == "all":
        compared |= True
    row, pair = np.nonzero(compared & real[:, i] & real[:, j])
    return np.stack([row, i[pair], j[pair]])
