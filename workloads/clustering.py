"""K-means on the device, for prototypes: those of NCL's nodes, and those of ProtoNCE's images."""

from __future__ import annotations

import torch

from workloads.distributed import share_rows
from workloads.encoders.lloyd import lloyd
from workloads.sampling.negatives import permutation


def kmeans(points: torch.Tensor, k: int, key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lloyd's algorithm from ``k`` distinct points; a cluster that becomes empty keeps its centre.

    A collective operation: every rank has the points, and gets the clusters of the first one.

    Args:
        points: (n, d).
        k: at most n.
        key: of the random start.

    Returns:
        Centres (k, d) and the nearest centre of each point, (n,).
    """
    centres, members = lloyd(points, points[permutation(key, len(points), points.device)[:k]])
    for part in (centres, members):  # sums of a GPU differ in the last bits from rank to rank
        share_rows(part, [len(part)])
    return centres, members
