"""K-means against Lloyd's algorithm in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workloads.clustering import kmeans
from workloads.encoders import lloyd
from workloads.encoders.lloyd import ITERATIONS
from workloads.sampling.negatives import permutation


@pytest.mark.parametrize("at_once", [2**26, 20])
def test_kmeans_matches_lloyds_algorithm_in_numpy(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20 the points are processed in blocks."""
    monkeypatch.setattr(lloyd, "_AT_ONCE", at_once)
    points = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    centres = points[permutation(7, 60, points.device)[:4]].double().numpy()
    for _ in range(ITERATIONS):
        members = np.array([((point - centres) ** 2).sum(1).argmin() for point in points.double().numpy()])
        centres = np.stack([points.double().numpy()[members == k].mean(0) for k in range(4)])
    found, assigned = kmeans(points, 4, 7)
    np.testing.assert_allclose(found, centres, atol=1e-5)
    assert assigned.tolist() == members.tolist()


def test_kmeans_with_empty_clusters_has_finite_centres() -> None:
    centres, members = kmeans(torch.zeros(5, 2), 3, 1)
    assert centres.isfinite().all()
    assert members.tolist() == [0] * 5
