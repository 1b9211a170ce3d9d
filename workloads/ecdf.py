"""Empirical distribution functions of rows of scores: what the Bayesian sampler and loss know of a score's place."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

Ties: TypeAlias = Literal["le", "mid"]
"""Equal scores: ``le`` counts all of them as in the thesis' definition, ``mid`` half of them."""


_COMPARED = 128
"""Up to so many scores a row, a CPU compares all pairs quicker than it sorts and searches (measured)."""


def ecdf(scores: torch.Tensor, ties: Ties = "le") -> torch.Tensor:
    """F(x_n) of each score among the scores of its own row, thesis (2.4), (4.15) and (6.30).

    A sort and a binary search a row, O(N log N), where the comparison of all pairs, O(N^2), is not quicker.

    Args:
        scores: (..., N).
        ties: what equal scores count, see :data:`Ties`.

    Returns:
        Like ``scores``, in (0, 1].
    """
    scores = scores.detach()
    if scores.device.type == "cpu" and scores.shape[-1] <= _COMPARED:
        counts, flags = torch.zeros_like(scores), torch.empty_like(scores)
        for column in scores.unsqueeze(-1).unbind(-2):
            counts += torch.ge(scores, column, out=flags)
            if ties == "mid":
                counts += torch.gt(scores, column, out=flags)
        return counts / (scores.shape[-1] * (2 if ties == "mid" else 1))
    return ecdf_at(scores.sort(-1).values.contiguous(), scores, ties)


def ecdf_at(ordered: torch.Tensor, x: torch.Tensor, ties: Ties = "le", plus_one: bool = False) -> torch.Tensor:
    """F(x) where F is the empirical distribution of ``ordered``, row by row.

    Args:
        ordered: (..., n), ascending.
        x: (..., m).
        ties: see :data:`Ties`.
        plus_one: divide by n + 1 instead of n, which keeps F below 1 (E-4.14).

    Returns:
        (..., m).
    """
    n = ordered.shape[-1]
    counts = torch.searchsorted(ordered, x.contiguous(), right=True).to(x.dtype)
    if ties == "mid":
        counts = (counts + torch.searchsorted(ordered, x.contiguous(), right=False)) / 2
    return counts / (n + plus_one)
