"""K-means on the device, for prototypes: those of NCL's nodes, and those of ProtoNCE's images."""

from __future__ import annotations

import torch

from workloads.sampling.negatives import permutation

ITERATIONS = 25
"""Lloyd's iterations, a fixed number so that nothing waits for the device; as faiss has by default."""

_AT_ONCE = 2**26
"""Distances computed at once: 256 MiB of float32."""


def kmeans(points: torch.Tensor, k: int, key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lloyd's algorithm from ``k`` distinct points; a cluster that becomes empty keeps its centre.

    Args:
        points: (n, d).
        k: at most n.
        key: of the random start.

    Returns:
        Centres (k, d) and the nearest centre of each point, (n,).
    """
    centres = points[permutation(key, len(points), points.device)[:k]]
    ones = points.new_ones(len(points))
    for _ in range(ITERATIONS):
        members = _nearest(points, centres)
        sums = torch.zeros_like(centres).index_add_(0, members, points)
        counts = ones.new_zeros(k).index_add_(0, members, ones).unsqueeze(1)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres, _nearest(points, centres)


def _nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """|p - c|² is smallest where c² - 2 p·c is."""
    lengths = centres.square().sum(1)
    blocks = torch.split(points, max(1, _AT_ONCE // len(centres)))
    return torch.cat([(lengths - 2 * block @ centres.T).argmin(1) for block in blocks])
