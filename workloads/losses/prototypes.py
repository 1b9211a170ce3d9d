"""Losses of self-distillation and of prototypes: BYOL, and the prototypes' term of ProtoNCE.

All take embeddings of length one and give one value an anchor; the caller reduces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

SMOOTHING = 10.0
"""α of PCL's eq. 12, which keeps small clusters from a large concentration."""

LEAST = 1e-3
"""Least φ, as a share of the temperature."""


def byol_loss(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """BYOL, ``|q̄ - z̄'|² = 2 - 2 cos(q, z')``. Thesis 2.2.4.2; Grill et al., NeurIPS 2020, eq. 2.

    Args:
        predicted: predictions of the online network, (B, d), of length one.
        target: embeddings of the other view by the target network, (B, d), of length one, a constant.

    Returns:
        (B,), in [0, 4].
    """
    return 2 - 2 * (predicted * target.detach()).sum(1)


def prototype_loss(
    anchors: torch.Tensor,
    prototypes: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    concentrations: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Term of prototypes of ProtoNCE, ``-ln(e^{x·c_s/φ_s} / Σ_j e^{x·c_j/φ_j})``, the mean over M clusterings.

    Thesis 2.2.4.4; Li et al., ICLR 2021 (PCL), eq. 11, with all prototypes as negatives (E-2.P).

    Args:
        anchors: (B, d), of length one.
        prototypes: of each clustering, (k_m, d), of length one.
        own: the prototype of each anchor, (B,), of each clustering.
        concentrations: φ of each prototype, (k_m,), which divides its cosines.

    Returns:
        (B,) in nats, at least 0.
    """
    terms = [
        functional.cross_entropy(anchors @ centres.T / phi, members, reduction="none")
        for centres, members, phi in zip(prototypes, own, concentrations, strict=True)
    ]
    return torch.stack(terms).mean(0)


def concentrations(
    points: torch.Tensor, centres: torch.Tensor, members: torch.Tensor, temperature: float
) -> torch.Tensor:
    """φ of each cluster, ``Σ_z |z - c| / (Z ln(Z + α))``, small where many points are close. PCL, eq. 12 (E-2.P).

    A cluster of fewer than two points has the largest of the others; values are clipped to the 10th and 90th
    percentile, and divided so that their mean is ``temperature``, as in PCL's code, but not below :data:`LEAST` of it.

    Args:
        points: (n, d).
        centres: (k, d), the means of the clusters.
        members: the cluster of each point, (n,).

    Returns:
        (k,), greater than 0.
    """
    k = len(centres)
    distances = torch.linalg.vector_norm(points - centres[members], dim=1)
    sizes = points.new_zeros(k).index_add_(0, members, torch.ones_like(distances))
    sums = points.new_zeros(k).index_add_(0, members, distances)
    spread = sums / (sizes.clamp_min(1) * (sizes + SMOOTHING).log())
    spread = torch.where(sizes > 1, spread, spread.amax())
    spread = spread.clamp(spread.quantile(0.1), spread.quantile(0.9))
    mean = spread.mean()
    scaled = torch.where(mean > 0, temperature * spread / mean, temperature)  # clusters of equal points have no spread
    return scaled.clamp_min(LEAST * temperature)
