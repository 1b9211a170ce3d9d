"""The loss of a global batch of pairs: each rank's share, computed from the vectors of its own pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.bi_encoder.batches import Batch
from workloads.bi_encoder.dataset import TokenisedPairs
from workloads.bi_encoder.losses import LOSSES
from workloads.distributed import gather
from workloads.encoders.pooling import cosine, normalised
from workloads.losses import graded
from workloads.losses.graded import cosine_mse_loss
from workloads.scores import in_batch_scores
from workloads.transfer import all_to_device


@dataclass(frozen=True, eq=False)
class EmbeddedBatch:
    """A global batch with this rank's vectors, with graph.

    ``vectors`` (b, 2, d): both sentences of its own pairs; of a cross-encoder (b,), their similarities.
    """

    vectors: torch.Tensor
    batch: Batch
    part: TokenisedPairs
    mined: NDArray[np.bool_] | None = None
    """Which of its own pairs' k hard negatives there are, (b, k): then ``vectors`` are (b, 2 + k, d)."""

    def cut(self, dim: int) -> EmbeddedBatch:
        """The same with vectors of length ``dim``."""
        return replace(self, vectors=self.vectors[..., :dim])

    @property
    def cosines(self) -> torch.Tensor:
        """Cosines of the rank's own pairs, or a cross-encoder's similarities, (b,)."""
        if self.vectors.dim() == 1:
            return self.vectors
        return cosine(self.vectors[:, 0], self.vectors[:, 1])

    @property
    def own(self) -> NDArray[np.int64]:
        """Indices of the rank's own pairs."""
        return self.batch.rows[self.batch.own]

    def to_device(self, *values: NDArray[Any]) -> list[torch.Tensor]:
        """Copy arrays of the host to the device of the vectors."""
        return all_to_device([torch.from_numpy(array) for array in values], self.vectors.device)


def batch_loss(embedded: EmbeddedBatch, loss: str, settings: Mapping[str, Any]) -> torch.Tensor:
    """This rank's share of the loss ``loss``, a scalar. The sum over the ranks is the loss of the batch.

    Args:
        settings: the parameters of the loss, by name.
    """
    row = LOSSES[loss]
    if row.in_batch:
        return in_batch_loss(embedded, row.load(), **settings)
    value: torch.Tensor = row.load()(embedded, **settings)
    return value


def mse_loss(embedded: EmbeddedBatch, *, lowest_cosine: float) -> torch.Tensor:
    """Squared difference between a pair's cosine and its score, mapped to [``lowest_cosine``, 1] (E-S0)."""
    (grades,) = embedded.to_device(embedded.part.grades[embedded.own])
    return cosine_mse_loss(embedded.cosines, grades, lowest_cosine).sum() / len(embedded.batch)


def cosine_embedding_loss(embedded: EmbeddedBatch, *, positive_from: float, margin: float) -> torch.Tensor:
    """PyTorch's cosine embedding loss. Pairs with a score of ``positive_from`` or more are positive."""
    (positive,) = embedded.to_device(embedded.part.grades[embedded.own] >= positive_from)
    return graded.cosine_embedding_loss(embedded.cosines, positive, margin).sum() / len(embedded.batch)


def cosent_loss(embedded: EmbeddedBatch, *, temperature: float) -> torch.Tensor:
    """CoSENT over all pairs of the batch. Every rank computes the whole loss and returns an equal share of it."""
    cosines = gather(embedded.cosines, embedded.batch.counts)
    (grades,) = embedded.to_device(embedded.part.grades[embedded.batch.rows])
    return graded.cosent_loss(cosines, grades, temperature) / len(embedded.batch.counts)


def in_batch_loss(
    embedded: EmbeddedBatch, formula: Callable[..., torch.Tensor], *, positive_from: float, **settings: Any
) -> torch.Tensor:
    """Contrastive loss with in-batch negatives.

    The anchors are the first sentences of the positive pairs, the candidates the second sentences of all pairs of the
    batch, and each anchor's own hard negatives. A sentence with the same text as the anchor or its partner is not a
    negative (E-6.N).

    Args:
        formula: a loss of the scores (A,) and (A, N), with ``settings`` as keywords.
        positive_from: the lowest score of a positive pair.
    """
    part = embedded.part
    rows = embedded.batch.rows
    anchors = np.flatnonzero(part.grades[embedded.own] >= positive_from)
    count = max(1, int((part.grades[rows] >= positive_from).sum()))
    texts = part.pairs[embedded.own[anchors]]
    others = part.pairs[rows, 1]
    same = (texts[:, :, None] == others).any(1)
    candidates = gather(normalised(embedded.vectors[:, 1]), embedded.batch.counts)
    rows_of, own, masked = embedded.to_device(anchors, anchors + embedded.batch.own.start, same)
    first = normalised(embedded.vectors[:, 0]).index_select(0, rows_of)
    positive, negatives = in_batch_scores(first, candidates, own, masked)
    if embedded.mined is not None:
        (there,) = embedded.to_device(embedded.mined[anchors])
        mined = normalised(embedded.vectors[:, 2:]).index_select(0, rows_of)
        scores = torch.einsum("ad,akd->ak", first, mined).masked_fill(~there, -torch.inf)
        negatives = torch.cat([negatives, scores], 1)
    return formula(positive, negatives, **settings).sum() / count
