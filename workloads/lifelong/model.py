"""The model: one encoder of queries and documents, or one of each."""

from __future__ import annotations

import copy

import torch
from torch import nn

from workloads.encoders.packing import Packed
from workloads.encoders.text import TextEncoder


class TwoEncoders(nn.Module):
    """An encoder of documents and one of queries, E^d and E^q of the notes, which begin equal."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.documents = encoder
        self.queries = copy.deepcopy(encoder)

    def forward(self, documents: Packed, queries: Packed) -> torch.Tensor:
        """Vectors (n + m, d) of n documents and then m queries."""
        return torch.cat([self.documents(documents), self.queries(queries)])
