"""The rankers: a cross-encoder, which reads query and document together, and a bi-encoder, which reads them apart."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from workloads.encoders.packing import Packed, pack
from workloads.encoders.pooling import normalised
from workloads.encoders.text import TextEncoder, encode
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.losses.ranknet import bounded, unbounded
from workloads.seeding import generator
from workloads.text_ranker.dataset import Texts
from workloads.text_ranker.params import Params

_INITIAL = 0.02  # standard deviation of the head's weights, BERT's
_AT_ONCE = 2**13  # pairs whose vectors are kept at once when nothing is learnt


class SequenceBuilder:
    """Turns pairs of a query and a document into the sequences that a ranker reads."""

    def __init__(self, tokenizer: Tokenizer, texts: Texts, scoring: str) -> None:
        self.tokenizer, self.texts, self.scoring = tokenizer, texts, scoring

    def sequences(self, queries: NDArray[np.int64], docs: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """What is read for n pairs, and which of it each pair's score is made of.

        For a cross-encoder a sequence a pair, (1, n); for a bi-encoder each query and each document once, and the
        places of the pair's two, (2, n).
        """
        if self.scoring == "cross":
            first, second = self.texts.queries.take(queries), self.texts.docs.take(docs)
            return self.tokenizer.pairs(first, second), np.arange(len(queries))[None]
        asked, query_place = np.unique(queries, return_inverse=True)
        read, doc_place = np.unique(docs, return_inverse=True)
        both = concatenated(self.texts.queries.take(asked), self.texts.docs.take(read))
        return self.tokenizer.single(both), np.stack([query_place, len(asked) + doc_place])


class Ranker(nn.Module):
    """Scores of query-document pairs.

    ``cross``: a linear function of the pooled vector of both texts in one sequence (note, PairWiseBertRanker). ``bi``:
    cosine of the two texts' vectors, over a temperature. ``raw`` is the margin or σ where it is learnt, before
    :func:`~workloads.losses.ranknet.bounded`.
    """

    def __init__(self, encoder: TextEncoder, params: Params, seed: int) -> None:
        super().__init__()
        self.encoder, self.temperature = encoder, params.temperature or 1.0
        self.head: nn.Linear | None = None
        if params.scoring == "cross":
            with torch.random.fork_rng(devices=()), torch.no_grad():
                self.head = nn.Linear(encoder.dim, 1)
                self.head.weight.normal_(0, _INITIAL, generator=generator(seed, "head"))
                self.head.bias.zero_()
        start = params.margin if params.margin is not None else params.sigma
        self.scale: float = 1.0 if start is None else start
        self.raw = nn.Parameter(unbounded(self.scale)) if params.learnable else None

    def forward(self, batch: Packed, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of n pairs, (n,) float32, and the margin or σ, a scalar.

        Args:
            batch: the sequences of :meth:`SequenceBuilder.sequences`.
            places: what each pair is made of, (1, n) or (2, n).
        """
        return self.scores(self.encoder(batch), places), self.pair_scale(places.device)

    def pair_scale(self, device: torch.device) -> torch.Tensor:
        """The margin or σ, a scalar."""
        return torch.tensor(self.scale, device=device) if self.raw is None else bounded(self.raw)

    def scores(self, vectors: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores from the vectors of the sequences, (n,)."""
        if self.head is not None:
            scores: torch.Tensor = self.head(vectors).squeeze(1)
            return scores
        queries, docs = normalised(vectors)[places].unbind(0)
        return (queries * docs).sum(1) / self.temperature


def packed_pairs(
    sequence_builder: SequenceBuilder, queries: NDArray[np.int64], docs: NDArray[np.int64], device: torch.device
) -> tuple[Packed, torch.Tensor, int]:
    """The input of a :class:`Ranker` for n pairs on its device, and how many of the sequences were cut."""
    tokens, places = sequence_builder.sequences(queries, docs)
    return pack(tokens, device), torch.from_numpy(places).to(device, non_blocking=True), int(tokens.cut.sum())


@torch.no_grad()
def score_pairs(
    ranker: Ranker, sequence_builder: SequenceBuilder, queries: NDArray[np.int64], docs: NDArray[np.int64]
) -> tuple[torch.Tensor, int]:
    """Scores of any number of pairs without a gradient, (n,), and how many sequences were cut."""
    device = next(ranker.parameters()).device
    found, cut = [torch.zeros(0, device=device)], 0
    for first in range(0, len(queries), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        tokens, places = sequence_builder.sequences(queries[part], docs[part])
        cut += int(tokens.cut.sum())
        found.append(ranker.scores(encode(ranker.encoder, tokens), torch.from_numpy(places).to(device)))
    return torch.cat(found), cut


def concatenated(first: Tokens, second: Tokens) -> Tokens:
    """The texts of both, one after the other."""
    return Tokens(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        np.concatenate([first.types, second.types]),
        np.concatenate([first.cut, second.cut]),
    )
