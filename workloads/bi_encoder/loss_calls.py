"""The losses by name: from the vectors of a global batch of pairs to this rank's share of the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.bi_encoder.batches import Batch
from workloads.bi_encoder.dataset import Part
from workloads.distributed import gather
from workloads.encoders.pooling import cosine, normalised
from workloads.losses import contrastive
from workloads.losses.graded import cosent_loss, cosine_embedding_loss, cosine_mse_loss
from workloads.scores import in_batch_scores

Objective: TypeAlias = Callable[..., torch.Tensor]
"""From a :class:`Scored` batch and, by name, what the loss reads, to a scalar: the ranks' sum is the batch's loss."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What a rank knows of a global batch. ``vectors`` (b, 2, d) are those of its own pairs, with their graph."""

    vectors: torch.Tensor
    batch: Batch
    part: Part

    @property
    def cosines(self) -> torch.Tensor:
        """Of the rank's own pairs, (b,)."""
        return cosine(self.vectors[:, 0], self.vectors[:, 1])

    @property
    def own(self) -> NDArray[np.int64]:
        """The rank's own pairs, by number."""
        return self.batch.rows[self.batch.own]

    def sent(self, values: NDArray[Any]) -> torch.Tensor:
        """Something of the host, on the device of the vectors."""
        tensor = torch.from_numpy(values)
        if self.vectors.device.type == "cuda":
            return tensor.pin_memory().to(self.vectors.device, non_blocking=True)
        return tensor


def _mse(scored: Scored, *, lowest_cosine: float) -> torch.Tensor:
    grades = scored.sent(scored.part.grades[scored.own])
    return cosine_mse_loss(scored.cosines, grades, lowest_cosine).sum() / len(scored.batch)


def _cosine_embedding(scored: Scored, *, positive_from: float, margin: float) -> torch.Tensor:
    positive = scored.sent(scored.part.grades[scored.own] >= positive_from)
    return cosine_embedding_loss(scored.cosines, positive, margin).sum() / len(scored.batch)


def _cosent(scored: Scored, *, temperature: float) -> torch.Tensor:
    """Of all pairs of the batch together: each rank computes the same and counts for its part."""
    cosines = gather(scored.cosines, scored.batch.counts)
    grades = scored.sent(scored.part.grades[scored.batch.rows])
    return cosent_loss(cosines, grades, temperature) / len(scored.batch.counts)


def _in_batch(scored: Scored, *, loss: Objective, positive_from: float, **settings: Any) -> torch.Tensor:
    """The first sentences of pairs that belong together, against the second sentences of all pairs of the batch.

    No negative of an anchor is a sentence that is the same text as itself or its own second one (E-6.N).
    """
    part, rows = scored.part, scored.batch.rows
    anchors = np.flatnonzero(part.grades[scored.own] >= positive_from)
    count = max(1, int((part.grades[rows] >= positive_from).sum()))
    texts, others = part.pairs[scored.own[anchors]], part.pairs[rows, 1]
    same = (texts[:, :, None] == others).any(1)
    candidates = gather(normalised(scored.vectors[:, 1]), scored.batch.counts)
    first = normalised(scored.vectors[:, 0]).index_select(0, scored.sent(anchors))
    own = scored.sent(anchors + scored.batch.own.start)
    positive, negatives = in_batch_scores(first, candidates, own, scored.sent(same))
    return loss(positive, negatives, **settings).sum() / count


def _dcl(positive: torch.Tensor, negatives: torch.Tensor, **settings: Any) -> torch.Tensor:
    """The pair's own second sentence is the only known positive (E-DCL)."""
    return contrastive.dcl_loss(positive, negatives, positive.unsqueeze(1), floor="cosine", **settings)


def _hcl(positive: torch.Tensor, negatives: torch.Tensor, **settings: Any) -> torch.Tensor:
    return contrastive.hcl_loss(positive, negatives, positive.unsqueeze(1), floor="cosine", **settings)


OBJECTIVES: Mapping[str, Objective] = {
    "mse": _mse,
    "cosent": _cosent,
    "cosine_embedding": _cosine_embedding,
    "infonce": partial(_in_batch, loss=contrastive.infonce_loss),
    "decoupled": partial(_in_batch, loss=contrastive.decoupled_loss),
    "dcl": partial(_in_batch, loss=_dcl),
    "hcl": partial(_in_batch, loss=_hcl),
    "bcl": partial(_in_batch, loss=contrastive.bcl_loss),
}
"""The losses that a parameter ``loss`` can name."""
