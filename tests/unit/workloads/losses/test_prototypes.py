"""BYOL's loss, ProtoNCE's term and its concentrations, against slow references written from the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from workloads.losses.prototypes import LEAST, byol_loss, concentrations, prototype_loss


def _unit(*shape: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return functional.normalize(drawn, dim=-1)


def test_byol_is_the_squared_distance_of_directions() -> None:
    predicted, target = _unit(5, 4).requires_grad_(), _unit(5, 4, seed=1).requires_grad_()
    loss = byol_loss(predicted, target)
    expected = [2 - 2 * math.fsum(q * z for q, z in zip(*pair)) for pair in zip(predicted.tolist(), target.tolist())]
    assert loss.tolist() == pytest.approx(expected)
    assert loss.tolist() == pytest.approx((predicted - target).square().sum(1).tolist())
    torch.autograd.backward(loss.sum())
    assert target.grad is None, "the target network has no gradient"
    assert predicted.grad is not None


def test_prototype_loss_matches_reference() -> None:
    anchors = _unit(6, 3).requires_grad_()
    prototypes = [_unit(4, 3, seed=1), _unit(8, 3, seed=2)]
    phi = [torch.linspace(0.1, 0.4, 4, dtype=torch.float64), torch.linspace(0.5, 0.2, 8, dtype=torch.float64)]
    own = [torch.tensor([0, 1, 2, 3, 3, 0]), torch.tensor([7, 6, 5, 0, 1, 2])]
    loss = prototype_loss(anchors, prototypes, own, phi)
    for row, anchor in enumerate(anchors.tolist()):
        terms = []
        for centres, members, scale in zip(prototypes, own, phi):
            weights = [
                math.exp(math.fsum(x * c for x, c in zip(anchor, centre)) / width)
                for centre, width in zip(centres.tolist(), scale.tolist())
            ]
            terms.append(-math.log(weights[members[row]] / math.fsum(weights)))
        assert loss[row].item() == pytest.approx(math.fsum(terms) / 2)
    assert torch.autograd.gradcheck(lambda x: prototype_loss(x, prototypes, own, phi), anchors)


def test_concentrations_are_those_of_the_paper() -> None:
    """Clusters have 1 to 6 points; a single point gets the largest concentration of the other clusters."""
    members = torch.tensor([cluster for cluster in range(6) for _ in range(cluster + 1)])
    points = _unit(len(members), 3)
    centres = torch.stack([points[members == cluster].mean(0) for cluster in range(6)])
    raw = []
    for cluster in range(6):
        own = points[members == cluster].numpy()
        distances = np.sqrt(((own - centres[cluster].numpy()) ** 2).sum(1)).sum()
        raw.append(distances / (len(own) * math.log(len(own) + 10)))
    raw[0] = max(raw)
    clipped = np.clip(raw, np.percentile(raw, 10), np.percentile(raw, 90))
    found = concentrations(points, centres, members, 0.2)
    np.testing.assert_allclose(found, 0.2 * clipped / clipped.mean())


def test_concentration_of_clusters_without_spread_is_the_temperature() -> None:
    points = _unit(1, 3).expand(6, 3)
    members = torch.tensor([0, 0, 0, 1, 1, 1])
    assert concentrations(points, points[:3], members, 0.2).tolist() == [0.2] * 3
    spread = torch.cat([points[:3], _unit(3, 3, seed=4)])
    few = concentrations(spread, spread[[0, 3]], members, 0.2)
    assert few.min() >= LEAST * 0.2
    assert few.mean().item() == pytest.approx(0.2)
