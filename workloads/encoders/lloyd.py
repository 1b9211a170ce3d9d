"""Lloyd's iterations of k-means, on the device. Exported with predictors that search by lists."""

from __future__ import annotations

import torch

ITERATIONS = 25
"""A fixed number so that nothing waits for the device; as faiss has by default."""

_AT_ONCE = 2**26
"""Distances computed at once: 256 MiB of float32."""


def lloyd(points: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K-means from given centres; a cluster that becomes empty keeps its centre.

    Args:
        points: (n, d).
        centres: (k, d).

    Returns:
        Centres (k, d) and the nearest centre of each point, (n,).
    """
    ones = points.new_ones(len(points))
    for _ in range(ITERATIONS):
        members = nearest(points, centres)
        sums = torch.zeros_like(centres).index_add_(0, members, points)
        counts = ones.new_zeros(len(centres)).index_add_(0, members, ones).unsqueeze(1)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres, nearest(points, centres)


def nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The nearest centre of each point, (n,): |p - c|² is smallest where c² - 2 p·c is."""
    lengths = centres.square().sum(1)
    blocks = torch.split(points, max(1, _AT_ONCE // len(centres)))
    return torch.cat([(lengths - 2 * block @ centres.T).argmin(1) for block in blocks])
