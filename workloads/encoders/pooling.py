"""Pool the vectors of a text's tokens into one: mean, first token or maximum, over real tokens only."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch.nn import functional

Pooling: TypeAlias = Literal["mean", "cls", "max"]

NORM_FLOOR = 1e-8
"""Lower bound of norms in a cosine, so that a zero vector has cosine 0 with any other (E-S4)."""


def pool(hidden: torch.Tensor, offsets: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector per text (design note 2.3); the zero vector for a text without tokens (E-S4).

    Args:
        hidden: token vectors, (T, d), one text after the other.
        offsets: text i has the rows ``offsets[i]`` to ``offsets[i + 1]``, (n + 1,) int64.
        pooling: mean over the text's tokens, first token (CLS), or maximum in each dimension.

    Returns:
        (n, d).
    """
    starts = offsets[:-1]
    lengths = offsets.diff()
    if pooling == "cls" and len(hidden):
        first = hidden.index_select(0, starts.clamp_max(max(len(hidden) - 1, 0)))
        return first.masked_fill((lengths == 0).unsqueeze(1), 0)
    if pooling == "max" and len(hidden) and torch.are_deterministic_algorithms_enabled():
        return _deterministic_max(hidden, starts, lengths)
    rows = torch.arange(len(hidden), device=hidden.device)
    return functional.embedding_bag(rows, hidden, starts, mode="mean" if pooling == "cls" else pooling)


def _deterministic_max(hidden: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """As ``embedding_bag``, whose backward of the maximum is not deterministic on CUDA."""
    tokens = torch.arange(int(lengths.max()), device=hidden.device)
    rows = (starts.unsqueeze(1) + tokens).clamp_max(len(hidden) - 1)
    padding = (tokens >= lengths.unsqueeze(1)).unsqueeze(2)
    best = hidden.detach()[rows].masked_fill(padding, -torch.inf).argmax(1)
    largest = hidden.gather(0, (starts.unsqueeze(1) + best).clamp_max(len(hidden) - 1))
    return largest.masked_fill((lengths == 0).unsqueeze(1), 0)


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine (...) of each row of ``a`` with the same row of ``b``, (..., d) each; 0 if one is zero (E-S4)."""
    return functional.cosine_similarity(a, b, dim=-1, eps=NORM_FLOOR)


def normalised(rows: torch.Tensor) -> torch.Tensor:
    """Normalise rows (..., d) to length one, so that inner products are cosines. Zero rows stay zero."""
    return functional.normalize(rows, dim=-1, eps=NORM_FLOOR)
