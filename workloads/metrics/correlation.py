"""Correlation of predictions with labels: Pearson's, and Spearman's with average ranks for ties."""

from __future__ import annotations

import torch

_ROUNDING = 8 * torch.finfo(torch.float32).eps
"""Relative error of a cosine: those of a model that gives one vector to every text differ by it."""


def average_ranks(values: torch.Tensor) -> torch.Tensor:
    """Ranks from 1, ascending; equal values share the average of their ranks (E-S3). (n,) to (n,) float64.

    All ranks are NaN if a value is: NaN has no place in an order.
    """
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    average = counts.cumsum(0).double() - (counts.double() - 1) / 2
    ranks: torch.Tensor = average[group].masked_fill(values.isnan().any(), torch.nan)
    return ranks


def influences(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Influence values of each observation on Pearson's r, with mean r and the spread of r; (n,) float64.

    Of average ranks r is Spearman's ρ (design note 6.4). Where either is constant, r is 0 (E-S3).

    ``r + z_x z_y - r (z_x² + z_y²)/2`` with standardised z, the influence function of r (Devlin, Gnanadesikan and
    Kettenring, Biometrika 1975). Resampling them instead of the pairs avoids recomputing the correlation.
    """
    if constant(x) or constant(y):
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)
    zx = _standardised(x)
    zy = _standardised(y)
    r = (zx * zy).mean().clamp(-1, 1)
    return r + zx * zy - r * (zx.square() + zy.square()) / 2


def constant(values: torch.Tensor) -> bool:
    """Whether all values are equal, except for the rounding of float32."""
    return not len(values) or bool(values.max() - values.min() <= _ROUNDING * values.abs().max())


def _standardised(values: torch.Tensor) -> torch.Tensor:
    centred = values.double() - values.double().mean()
    return centred / centred.square().mean().sqrt()
