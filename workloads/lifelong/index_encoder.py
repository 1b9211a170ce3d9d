"""Texts to vectors: those of the index, and those of the model as it is; and what a query finds with it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.distributed import reduce_sum
from workloads.encoders.packing import to_device
from workloads.encoders.pooling import normalised
from workloads.encoders.search import exact_topk
from workloads.encoders.text import TextEncoder, encode
from workloads.encoders.tokens import Tokens
from workloads.lifelong.index import Index
from workloads.lifelong.replay import VectorLookup


class IndexEncoder:
    """An encoder over the texts of a collection, ``documents`` of them and then its queries, and their index.

    ``read`` counts the documents that were embedded for anything but the index. Vectors have length one. Every method
    that embeds is a collective.
    """

    def __init__(self, encoder: TextEncoder, tokens: Tokens, documents: int, index: Index, runtime: Runtime) -> None:
        self.encoder, self.tokens, self.index, self.runtime = encoder, tokens, index, runtime
        self._documents = documents
        self.read = 0

    @torch.no_grad()
    def embed(self, texts: NDArray[np.int64]) -> torch.Tensor:
        """By the model as it is, (n, d) on the device; the ranks share the work and have the same."""
        own = np.arange(len(texts))[self.runtime.rank :: self.runtime.world_size]
        vectors = torch.zeros(len(texts), self.encoder.dim, device=self.runtime.device)
        if len(own):
            vectors[self.to_device(torch.from_numpy(own))] = encode(self.encoder, self.tokens.take(texts[own]))
        return normalised(reduce_sum(vectors))

    def queries(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Queries by the model as it is, (n, d)."""
        return self.embed(self._documents + numbers)

    def stored(self, docs: NDArray[np.int64]) -> torch.Tensor:
        """Documents by the index, zero for -1. (...,) -> (..., d). Raises KeyError for one that is not in it."""
        return self.to_device(self.index.take(docs))

    def lookup(self, *blocks: NDArray[np.int64], again: bool = False) -> VectorLookup:
        """A function from documents to vectors, for all documents of some blocks: as the index has them, and where it
        does not, or with ``again``, by the model as it is now."""
        wanted = np.unique(np.concatenate([block.ravel() for block in blocks]))
        wanted = wanted[wanted >= 0]
        fresh = wanted if again else np.setdiff1d(wanted, self.index.docs)
        self.read += len(fresh)
        # Behind them a zero, for whoever is not among them.
        vectors = torch.nn.functional.pad(self.embed(fresh), (0, 0, 0, 1))

        def lookup(docs: NDArray[np.int64]) -> torch.Tensor:
            place = np.searchsorted(fresh, docs)
            embedded = np.append(fresh, -2)[place] == docs
            stored = self.stored(np.where(embedded, -1, docs))
            return stored + vectors[self.to_device(torch.from_numpy(np.where(embedded, place, len(fresh))))]

        return lookup

    def ranked(self, queries: int, depth: int) -> NDArray[np.int64]:
        """The best documents of the index for each of the first ``queries`` queries, (Q, depth), -1 past the end."""
        _, rows = exact_topk(self.queries(np.arange(queries)), self.index.blocks(), depth)
        found = np.full((queries, depth), -1, np.int64)
        found[:, : rows.shape[1]] = self.index.docs[rows.cpu().numpy()]
        return found

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the device, without waiting for it."""
        return to_device(tensor, self.runtime.device)
