"""Vectors of texts, from the index or from the current model, and search of the index."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.encoders.pooling import normalised
from workloads.encoders.sharded import sharded_encode, sharded_topk
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokens
from workloads.lifelong.index import Index
from workloads.lifelong.replay import VectorLookup
from workloads.transfer import to_device

AT_ONCE = 2**17
"""Texts that are embedded at once for the index: 200 MB of vectors of 384 dimensions."""

QUERIES = 2**16
"""Queries that search the index at once: their scores of a block take 270 MB."""


class IndexEncoder:
    """Encoders with the texts of a collection, ``documents`` documents and then its queries, and their index.

    ``embedded_for_negatives`` counts the documents embedded to choose negatives, not for the index. Vectors are unit
    vectors. Every method that embeds is a collective operation. The ranks share embedding and search.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        query_encoder: TextEncoder,
        tokens: Tokens,
        documents: int,
        index: Index,
        runtime: Runtime,
    ) -> None:
        self.encoder = encoder
        self.query_encoder = query_encoder
        self.tokens = tokens
        self.index = index
        self.runtime = runtime
        self._documents = documents
        self.embedded_for_negatives = 0

    def embed_in_parts(self, texts: NDArray[np.int64]) -> NDArray[np.float32]:
        """As :meth:`embed`, on the host, (n, d); the device holds :data:`AT_ONCE` vectors at a time."""
        vectors = np.empty((len(texts), self.encoder.dim), np.float32)
        for first in range(0, len(texts), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            vectors[part] = self.embed(texts[part]).cpu().numpy()
        return vectors

    @torch.no_grad()
    def embed(self, texts: NDArray[np.int64], queries: bool = False) -> torch.Tensor:
        """Embed texts with the current model, (n, d), on the device. The ranks share the work; all get the result.

        ``queries``: with the encoder of queries.
        """
        encoder = self.query_encoder if queries else self.encoder
        return normalised(sharded_encode(encoder, self.tokens.take(texts), self.runtime))

    def queries(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Embed queries with the current model, (n, d)."""
        return self.embed(self._documents + numbers, queries=True)

    def stored(self, docs: NDArray[np.int64]) -> torch.Tensor:
        """Vectors of documents from the index; zero for -1. (...,) -> (..., d). Raises KeyError if one is missing."""
        return self.to_device(self.index.take(docs))

    def lookup(self, *blocks: NDArray[np.int64], again: bool = False) -> VectorLookup:
        """A function from documents to vectors, for all documents of some blocks.

        The vectors are the index's. Documents that are not in the index, or with ``again`` all documents, are embedded
        with the current model.
        """
        wanted = np.unique(np.concatenate([block.ravel() for block in blocks]))
        wanted = wanted[wanted >= 0]
        fresh = wanted if again else np.setdiff1d(wanted, self.index.docs)
        self.embedded_for_negatives += len(fresh)
        # The last row is zero, for documents that are not embedded here.
        vectors = torch.nn.functional.pad(self.embed(fresh), (0, 0, 0, 1))

        def lookup(docs: NDArray[np.int64]) -> torch.Tensor:
            row = np.searchsorted(fresh, docs)
            embedded = np.append(fresh, -2)[row] == docs
            stored = self.stored(np.where(embedded, -1, docs))
            return stored + vectors[self.to_device(torch.from_numpy(np.where(embedded, row, len(fresh))))]

        return lookup

    def ranked(self, queries: int, depth: int) -> NDArray[np.int64]:
        """The best documents of the index for each of the first ``queries`` queries, (Q, depth), padded with -1.

        A query without text, whose vector is zero, has none, nor has one with a score that is NaN, which has no place
        in an order.
        """
        docs = np.full((queries, depth), -1, np.int64)
        for part in np.split(np.arange(queries), range(QUERIES, queries, QUERIES)):
            vectors = self.queries(part)
            scores, best = sharded_topk(vectors, self.index.blocks(), depth, self.runtime)  # NaN is among the highest
            unranked = (vectors == 0).all(1, keepdim=True) | scores.isnan().any(1, keepdim=True)
            rows = best.masked_fill(unranked, -1).cpu().numpy()
            docs[part, : rows.shape[1]] = np.where(rows < 0, -1, self.index.docs[rows])
        return docs

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to the device without synchronising."""
        return to_device(tensor, self.runtime.device)
