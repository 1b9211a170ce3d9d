"""The rankers: a cross-encoder, which encodes query and document together, and a bi-encoder, which does so apart."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from workloads.encoders.packing import Packed, pack
from workloads.encoders.pooling import normalised
from workloads.encoders.text import TextEncoder, encode, scoring_head
from workloads.encoders.tokens import Tokenizer, Tokens, spans
from workloads.losses.ranknet import bounded, unbounded
from workloads.text_ranker.dataset import Texts
from workloads.text_ranker.params import Params
from workloads.transfer import constant, to_device

_SCORED_AT_ONCE = 2**13  # pairs whose vectors are in memory at once, without gradients


class SequenceBuilder:
    """Converts pairs of a query and a document to the token sequences that the encoder reads."""

    def __init__(self, tokenizer: Tokenizer, texts: Texts, scoring: str) -> None:
        self.tokenizer = tokenizer
        self.texts = texts
        self.scoring = scoring

    def sequences(self, queries: NDArray[np.int64], docs: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """The sequences for n pairs, and the rows of the sequences that each pair's score is computed from.

        A cross-encoder has one sequence per pair; the rows are (1, n). A bi-encoder has each query and each document
        once; the rows of a pair's two sequences are (2, n).
        """
        if self.scoring == "cross":
            pairs = self.tokenizer.pairs(self.texts.queries.take(queries), self.texts.docs.take(docs))
            return pairs, np.arange(len(queries))[None]
        distinct_queries, query_rows = np.unique(queries, return_inverse=True)
        distinct_docs, doc_rows = np.unique(docs, return_inverse=True)
        both = concatenated(self.texts.queries.take(distinct_queries), self.texts.docs.take(distinct_docs))
        return self.tokenizer.single(both), np.stack([query_rows, len(distinct_queries) + doc_rows])

    def passages(
        self, queries: NDArray[np.int64], docs: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_] | None]:
        """The pairs of n pairs' queries and passages, and which of a pair's P passages there are, (n, P).

        None where every document is one text: then the pairs stay as they are.
        """
        starts = self.texts.starts
        if starts is None:
            return queries, docs, None
        counts = starts[docs + 1] - starts[docs]
        passages, _ = spans(starts[docs], counts)
        return np.repeat(queries, counts), passages, np.arange(counts.max(initial=1)) < counts[:, None]


class Ranker(nn.Module):
    """Scores of query-document pairs.

    ``cross``: a linear function of the pooled vector of both texts in one sequence (note, PairWiseBertRanker). ``bi``:
    the cosine of the two texts' vectors, divided by a temperature. ``raw`` is the learnable margin or σ before
    :func:`~workloads.losses.ranknet.bounded`; None if it is not learned.
    """

    def __init__(self, encoder: TextEncoder, params: Params, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.temperature = params.temperature or 1.0
        self.head = scoring_head(encoder.dim, seed) if params.scoring == "cross" else None
        start = params.margin if params.margin is not None else params.sigma
        self.scale: float = 1.0 if start is None else start
        self.raw = nn.Parameter(unbounded(self.scale)) if params.learnable else None

    def forward(
        self, batch: Packed, rows: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of n pairs, (n,) float32, and the margin or σ, a scalar.

        Args:
            batch: the sequences of :meth:`SequenceBuilder.sequences`.
            rows: rows of the sequences of each pair, or of each passage of each pair, (1, m) or (2, m).
            mask: which of a pair's passages there are, (n, P); None if a pair is one sequence.
        """
        return best(self.scores(self.encoder(batch), rows), mask), self.pair_scale(rows.device)

    def pair_scale(self, device: torch.device) -> torch.Tensor:
        """The margin or σ, a scalar."""
        return constant(self.scale, device) if self.raw is None else bounded(self.raw)

    def scores(self, vectors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Scores of n pairs from the vectors of the sequences, (n,)."""
        if self.head is not None:
            scores: torch.Tensor = self.head(vectors).squeeze(1)
            return scores
        queries, docs = normalised(vectors)[rows].unbind(0)
        return (queries * docs).sum(1) / self.temperature


def best(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The score of each pair's best passage, (n,). Dai and Callan, SIGIR 2019, MaxP.

    Args:
        scores: of all passages, pair by pair, (m,).
        mask: which of a pair's passages there are, (n, P), m of them; None if the scores are the pairs'.
    """
    if mask is None:
        return scores
    padded = torch.full(mask.shape, -torch.inf, device=scores.device, dtype=scores.dtype)
    return padded.masked_scatter(mask, scores).amax(1)


def packed_pairs(
    sequence_builder: SequenceBuilder, queries: NDArray[np.int64], docs: NDArray[np.int64], device: torch.device
) -> tuple[Packed, torch.Tensor, torch.Tensor | None, int]:
    """The input of a :class:`Ranker` for n pairs, on ``device``, and how many of the pairs' sequences are truncated."""
    queries, docs, mask = sequence_builder.passages(queries, docs)
    tokens, rows = sequence_builder.sequences(queries, docs)
    there = None if mask is None else to_device(torch.from_numpy(mask), device)
    return pack(tokens, device), to_device(torch.from_numpy(rows), device), there, int(tokens.cut[rows].sum())


@torch.no_grad()
def score_pairs(
    ranker: Ranker, sequence_builder: SequenceBuilder, queries: NDArray[np.int64], docs: NDArray[np.int64]
) -> tuple[torch.Tensor, int, int]:
    """Scores of any number of pairs without gradients, (n,), the number of truncated sequences, and of all.

    A bi-encoder's pair has two sequences. One that several pairs share counts for each of them, so that the share does
    not depend on the pairs that are scored together.
    """
    device = next(ranker.parameters()).device
    scores = [torch.zeros(0, device=device)]
    cut = 0
    sequences = 0
    for first in range(0, len(queries), _SCORED_AT_ONCE):
        part = slice(first, first + _SCORED_AT_ONCE)
        own_queries, own_docs, mask = sequence_builder.passages(queries[part], docs[part])
        tokens, rows = sequence_builder.sequences(own_queries, own_docs)
        cut += int(tokens.cut[rows].sum())
        sequences += rows.size
        own = ranker.scores(encode(ranker.encoder, tokens), torch.from_numpy(rows).to(device))
        scores.append(best(own, None if mask is None else torch.from_numpy(mask).to(device)))
    return torch.cat(scores), cut, sequences


def concatenated(first: Tokens, second: Tokens) -> Tokens:
    """The texts of ``first`` followed by those of ``second``."""
    return Tokens(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        np.concatenate([first.types, second.types]),
        np.concatenate([first.cut, second.cut]),
    )
