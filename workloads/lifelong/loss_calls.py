"""The loss of a session: from the embedded documents of some queries to one value a query."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.lifelong.params import Params
from workloads.losses.alignment import embedding_alignment_loss, no_compat_loss, rank_loss, ranking_alignment_loss


@dataclass(frozen=True, eq=False)
class Block:
    """Some queries with their positive, memory and new documents, C in all, O of them old.

    ``query`` (Q, d), divided by the temperature; ``fresh`` (Q, C, d) by the model in training, zero where it was not
    asked; ``there`` (Q, C); ``stored`` (Q, O, d) from the index, None where every document is embedded again.
    """

    query: torch.Tensor
    fresh: torch.Tensor
    there: torch.Tensor
    stored: torch.Tensor | None


def losses(block: Block, params: Params) -> torch.Tensor:
    """L_no-com, or L_com = L_rank + λ L_align with the alignment of the parameters, (Q,)."""
    if block.stored is None:
        return no_compat_loss(block.query, block.fresh, block.there)
    old = block.stored.shape[1]
    found = rank_loss(block.query, block.stored, block.fresh[:, old:], block.there)
    if params.compatible == "frozen":
        return found
    assert params.align_weight is not None
    if params.compatible == "embedding":
        aligned = embedding_alignment_loss(block.stored, block.fresh[:, :old], block.there[:, :old])
    else:
        aligned = ranking_alignment_loss(
            block.query, block.stored, block.fresh, block.there, detach_target=bool(params.detach_target)
        )
    return found + params.align_weight * aligned
