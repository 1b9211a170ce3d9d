"""Empirical distribution functions of rows of scores: what the Bayesian sampler and loss know of a score's place."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from workloads.sorting import sort_with_positions

Ties: TypeAlias = Literal["le", "mid"]
"""Equal scores: ``le`` counts all of them as in the thesis' definition, ``mid`` half of them."""


_COMPARED = 128
"""Up to so many scores a row, a CPU compares all pairs quicker than it sorts and searches (measured)."""


def ecdf(scores: torch.Tensor, ties: Ties = "le") -> torch.Tensor:
    """F(x_n) of each score among the scores of its own row, thesis (2.4), (4.15) and (6.30).

    A sort a row, O(N log N), where the comparison of all pairs, O(N^2), is not quicker.

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
    if scores.dtype == torch.float64:
        return ecdf_at(scores.sort(-1).values.contiguous(), scores, ties)
    return _ecdf_by_order(scores, ties)


def _ecdf_by_order(scores: torch.Tensor, ties: Ties) -> torch.Tensor:
    """From where the runs of equal scores begin and end in the order; not for float64."""
    values, places = sort_with_positions(scores.float())
    n, changes = scores.shape[-1], values[..., 1:] != values[..., :-1]
    edge, numbers = torch.ones_like(values[..., :1], dtype=torch.bool), torch.arange(n, device=scores.device)
    ends = torch.where(torch.cat([changes, edge], -1), numbers + 1, n)
    counts = ends.flip(-1).cummin(-1).values.flip(-1).float()
    if ties == "mid":
        counts += torch.where(torch.cat([edge, changes], -1), numbers, 0).cummax(-1).values
    return torch.empty_like(counts).scatter_(-1, places, counts / (2 * n if ties == "mid" else n)).to(scores.dtype)


def ecdf_at(ordered: torch.Tensor, x: torch.Tensor, ties: Ties = "le") -> torch.Tensor:
    """F(x) where F is the empirical distribution of ``ordered``, row by row.

    Args:
        ordered: (..., n), ascending.
        x: (..., m).
        ties: see :data:`Ties`.

    Returns:
        (..., m).
    """
    counts = torch.searchsorted(ordered, x.contiguous(), right=True).to(x.dtype)
    if ties == "mid":
        counts = (counts + torch.searchsorted(ordered, x.contiguous(), right=False)) / 2
    return counts / ordered.shape[-1]
