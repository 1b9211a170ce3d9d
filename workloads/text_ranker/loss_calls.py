"""The losses by name, of the groups of a step: which pairs they compare, and one value a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.text_ranker.batches import Groups
from workloads.text_ranker.losses import LOSSES


@dataclass(frozen=True)
class Block:
    """Scores and grades of b groups of G documents on the device, (b, G); a score of -inf is no document.

    ``pairs`` (3, P) are rows [group, i, j] of documents to compare.
    """

    scores: torch.Tensor
    grades: torch.Tensor
    pairs: torch.Tensor


class PairScores(NamedTuple):
    """Scores ``s`` and grades ``y`` of P pairs, (P,) each; the margin or σ; the largest difference of two grades."""

    s_i: torch.Tensor
    s_j: torch.Tensor
    y_i: torch.Tensor
    y_j: torch.Tensor
    scale: torch.Tensor | float
    gap_max: float

    @property
    def preference(self) -> torch.Tensor:
        """S: the sign of the difference of grades, (P,)."""
        return (self.y_i - self.y_j).sign()


class ListScores(NamedTuple):
    """Scores and grades of b groups, (b, G); σ where the loss has one."""

    scores: torch.Tensor
    grades: torch.Tensor
    scale: torch.Tensor | float


def query_losses(block: Block, loss: str, scale: torch.Tensor | float, gap_max: float) -> torch.Tensor:
    """The loss of each query, (b,), 0 for one with nothing to compare.

    A loss of pairs is the mean over the query's pairs, so that every query weighs alike.

    Args:
        scale: the margin or σ, for those that have one.
        gap_max: the largest difference of two grades.
    """
    row = LOSSES[loss]
    values: torch.Tensor
    if not row.pairs:
        values = row.compute(ListScores(block.scores, block.grades, scale), {})
        return values
    group, i, j = block.pairs
    s_i, s_j = block.scores[group, i], block.scores[group, j]
    y_i, y_j = block.grades[group, i], block.grades[group, j]
    values = row.compute(PairScores(s_i, s_j, y_i, y_j, scale, gap_max), {})
    none = values.new_zeros(len(block.scores))
    counts = none.index_add(0, group, torch.ones_like(values))
    return none.index_add(0, group, values) / counts.clamp(min=1)


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
