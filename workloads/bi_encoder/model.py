"""The model: an encoder whose vectors are compared, or a cross-encoder that reads both sentences at once."""

from __future__ import annotations

import torch
from torch import nn

from workloads.encoders.packing import Packed
from workloads.encoders.text import TextEncoder, scoring_head


class CrossEncoder(nn.Module):
    """Similarity of a pair in one sequence: the sigmoid of a linear function of its pooled vector (note 2.2, E-S6)."""

    def __init__(self, encoder: TextEncoder, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = scoring_head(encoder.dim, seed)

    def forward(self, batch: Packed) -> torch.Tensor:
        """Similarities (n,) in [0, 1] of n pairs, a sequence each."""
        return self.similarity(self.encoder(batch))

    def similarity(self, vectors: torch.Tensor) -> torch.Tensor:
        """Similarities of vectors of pairs, (n, d) to (n,)."""
        similarity: torch.Tensor = self.head(vectors).squeeze(1).sigmoid()
        return similarity
