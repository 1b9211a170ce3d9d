"""The loss of a session: one value per query, from its embedded documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.lifelong.params import Params
from workloads.losses.alignment import embedding_alignment_loss, no_compat_loss, rank_loss, ranking_alignment_loss


@dataclass(frozen=True, eq=False)
class EmbeddedBlock:
    """Some queries, each with C documents: first the O old ones (positive and memory), then the new ones.

    ``query`` (Q, d): divided by the temperature. ``fresh`` (Q, C, d): embedded by the model in training, zero for
    documents it does not embed. ``mask`` (Q, C): False for padding. ``stored`` (Q, O, d): the index's vectors; None if
    every document is embedded again.
    """

    query: torch.Tensor
    fresh: torch.Tensor
    mask: torch.Tensor
    stored: torch.Tensor | None


def losses(block: EmbeddedBlock, params: Params) -> torch.Tensor:
    """L_no-com, or L_com = L_rank + λ L_align with the alignment chosen by the parameters, (Q,)."""
    if block.stored is None:
        return no_compat_loss(block.query, block.fresh, block.mask)
    old = block.stored.shape[1]
    ranking = rank_loss(block.query, block.stored, block.fresh[:, old:], block.mask)
    if params.compatible == "frozen":
        return ranking
    assert params.align_weight is not None
    if params.compatible == "embedding":
        alignment = embedding_alignment_loss(block.stored, block.fresh[:, :old], block.mask[:, :old])
    else:
        alignment = ranking_alignment_loss(
            block.query, block.stored, block.fresh, block.mask, detach_target=bool(params.detach_target)
        )
    return ranking + params.align_weight * alignment
