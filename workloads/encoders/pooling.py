"""From the vectors of a text's tokens to one vector: mean, first token or maximum, over the real tokens only."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch.nn import functional

Pooling: TypeAlias = Literal["mean", "cls", "max"]

NORM_FLOOR = 1e-8
"""The least that a vector's norm counts for in a cosine: a zero vector has cosine 0 with any (E-S4)."""


def pool(hidden: torch.Tensor, offsets: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector a text (design note 2.3); a text without tokens has the zero vector (E-S4).

    Args:
        hidden: vectors of the tokens, (T, d), one text after the other.
        offsets: text i has the rows ``offsets[i]`` to ``offsets[i + 1]``, (n + 1,) int64.
        pooling: the mean over the text's tokens, its first token (CLS), or the maximum in each dimension.

    Returns:
        (n, d).
    """
    starts = offsets[:-1]
    lengths = offsets.diff()
    if pooling == "cls":
        first = hidden.index_select(0, starts.clamp_max(max(len(hidden) - 1, 0)))
        return first.masked_fill((lengths == 0).unsqueeze(1), 0)
    rows = torch.arange(len(hidden), device=hidden.device)
    return functional.embedding_bag(rows, hidden, starts, mode=pooling)


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine of each row of ``a`` with the same row of ``b``, (n, d) each; 0 where one is zero (E-S4). (n,)."""
    return functional.cosine_similarity(a, b, eps=NORM_FLOOR)


def normalised(rows: torch.Tensor) -> torch.Tensor:
    """Rows of length one, (n, d), so that inner products are cosines; zero rows stay zero."""
    return functional.normalize(rows, eps=NORM_FLOOR)
