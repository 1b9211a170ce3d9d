"""Empirical distribution functions of rows of scores, for the Bayesian sampler and loss."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from workloads.sorting import sort_with_positions

Ties: TypeAlias = Literal["le", "mid"]
"""How equal scores count: ``le`` counts all of them, as in the thesis' definition, ``mid`` half of them."""


_COMPARED = 128
"""Row length up to which comparing all pairs is faster on a CPU than sorting (measured)."""


def ecdf(scores: torch.Tensor, ties: Ties = "le") -> torch.Tensor:
    """F(x_n) of each score among the scores of its own row, thesis (2.4), (4.15) and (6.30).

    Sorts each row, O(N log N), except where comparing all pairs, O(N^2), is faster.

    Args:
        scores: (..., N).
        ties: how equal scores count, see :data:`Ties`.

    Returns:
        Shape of ``scores``, values in (0, 1].
    """
    scores = scores.detach()
    if scores.device.type == "cpu" and scores.shape[-1] <= _COMPARED:
        counts = torch.zeros_like(scores)
        flags = torch.empty_like(scores)
        for column in scores.unsqueeze(-1).unbind(-2):
            counts += torch.ge(scores, column, out=flags)
            if ties == "mid":
                counts += torch.gt(scores, column, out=flags)
        return counts / (scores.shape[-1] * (2 if ties == "mid" else 1))
    if scores.dtype == torch.float64:
        return ecdf_at(scores.sort(-1).values.contiguous(), scores, ties)
    return _ecdf_by_order(scores, ties)


def _ecdf_by_order(scores: torch.Tensor, ties: Ties) -> torch.Tensor:
    """F from the first and last positions of equal scores in sorted order; not for float64."""
    values, positions = sort_with_positions(scores.float())
    n = scores.shape[-1]
    changes = values[..., 1:] != values[..., :-1]
    edge = torch.ones_like(values[..., :1], dtype=torch.bool)
    numbers = torch.arange(n, device=scores.device)
    ends = torch.where(torch.cat([changes, edge], -1), numbers + 1, n)
    counts = ends.flip(-1).cummin(-1).values.flip(-1).float()
    if ties == "mid":
        counts += torch.where(torch.cat([edge, changes], -1), numbers, 0).cummax(-1).values
    return torch.empty_like(counts).scatter_(-1, positions, counts / (2 * n if ties == "mid" else n)).to(scores.dtype)


def ecdf_at(ordered: torch.Tensor, x: torch.Tensor, ties: Ties) -> torch.Tensor:
    """F(x), where F is the empirical distribution of the same row of ``ordered``.

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
