"""The losses of lifelong retrieval against the reference values, finite differences and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.losses.alignment import (
    embedding_alignment_loss,
    no_compat_loss,
    rank_loss,
    ranking_alignment_loss,
)

Q = [-1.5449, -0.8994, 0.1823, 0.2949]
POSITIVE = [-0.6425, 2.8853, -1.857, -2.0162]
NEW = [[-0.702, -2.0463, -0.7197, -0.6695], [-0.9089, 0.0569, -0.8228, 1.243], [-0.3833, -1.4016, 0.4061, -0.674]]
MEMORY = [[-0.447, 0.1222, -1.4925, 0.5748], [1.0175, 0.8517, -1.0202, 0.5103]]
OLD = [[-1.137, -0.7079, 0.5286, -0.6295], [-0.4016, -0.5571, -0.3897, -1.2424], [-0.0212, 1.1144, -0.295, -0.1182]]
FRESH = [[1.2251, 1.2523, -0.0652, 0.6642], [0.7479, -0.8686, 0.2766, 0.1018], [-0.0475, -0.7917, -1.8198, -0.6839]]


def block(*rows: list[list[float]]) -> torch.Tensor:
    """The rows as one tensor (1, C, d)."""
    return torch.tensor([row for part in rows for row in part], dtype=torch.float64).unsqueeze(0)


def mask(count: int) -> torch.Tensor:
    return torch.ones(1, count, dtype=torch.bool)


QUERY = torch.tensor([Q], dtype=torch.float64)


def test_contrastive_losses_match_reference_values() -> None:
    fresh = block([POSITIVE], MEMORY, NEW)
    assert no_compat_loss(QUERY, fresh, mask(6)).item() == pytest.approx(5.779458489021142, abs=1e-9)
    assert rank_loss(QUERY, fresh[:, :3], fresh[:, 3:], mask(6)).item() == pytest.approx(5.779458489021142, abs=1e-9)
    without = block([POSITIVE], NEW)
    assert no_compat_loss(QUERY, without, mask(4)).item() == pytest.approx(5.710581286320616, abs=1e-9)


def test_stored_embeddings_receive_no_gradient() -> None:
    """E-L6: stored embeddings have no gradient, and the query's gradient is that of the reference."""
    query = QUERY.clone().requires_grad_()
    stored, new = block([POSITIVE], MEMORY).requires_grad_(), block(NEW).requires_grad_()
    rank_loss(query, stored, new, mask(6)).sum().backward()
    assert stored.grad is None
    assert new.grad is not None
    expected = [-0.005808953163139036, -4.233591945723703, 1.311983559437735, 1.7825902140167214]
    assert query.grad is not None
    assert query.grad[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_alignment_losses_match_reference_values() -> None:
    stored, fresh, new = block(OLD), block(FRESH), block(NEW)
    found = embedding_alignment_loss(stored, fresh, mask(3))
    assert found.item() == pytest.approx(10.698155419999999, abs=1e-9)
    found = ranking_alignment_loss(QUERY, stored, torch.cat([fresh, new], 1), mask(6))
    assert found.item() == pytest.approx(1.1298236326135593, abs=1e-9)
    assert ranking_alignment_loss(QUERY, stored, torch.cat([stored, new], 1), mask(6)).item() == pytest.approx(0)


def test_ranking_alignment_gradient_at_new_documents_matches_formula() -> None:
    """E-L5: p (log(p / p') - KL) - (p - p') for the score of a new document, because both sides have a gradient."""
    new = block(NEW).requires_grad_()
    stored, fresh = block(OLD), block(FRESH)
    found = ranking_alignment_loss(QUERY, stored, torch.cat([fresh, new], 1), mask(6))
    found.sum().backward()
    p = torch.softmax((torch.cat([stored, new], 1) @ QUERY[0]), 1).detach()
    other = torch.softmax((torch.cat([fresh, new], 1) @ QUERY[0]), 1).detach()
    slope = (p * ((p / other).log() - found.detach()) - (p - other))[0, 3:]
    assert new.grad is not None
    torch.testing.assert_close(new.grad[0], slope.unsqueeze(1) * QUERY)


def test_detached_target_of_ranking_alignment_contributes_no_gradient() -> None:
    new, fresh = block(NEW).requires_grad_(), block(FRESH)
    ranking_alignment_loss(QUERY, block(OLD), torch.cat([fresh, new], 1), mask(6), detach_target=True).sum().backward()
    p = torch.softmax((torch.cat([block(OLD), new], 1) @ QUERY[0]), 1).detach()
    other = torch.softmax((torch.cat([fresh, new], 1) @ QUERY[0]), 1).detach()
    assert new.grad is not None
    torch.testing.assert_close(new.grad[0], (other - p)[0, 3:].unsqueeze(1) * QUERY)


def test_padding_leaves_losses_unchanged_and_receives_no_gradient() -> None:
    source = torch.Generator().manual_seed(0)
    filled = torch.cat([torch.ones(1, 6), torch.zeros(1, 2)], 1).bool()
    rest = torch.randn(1, 2, 4, generator=source, dtype=torch.float64)
    fresh = torch.cat([block(FRESH, NEW), rest], 1).requires_grad_()
    for found, expected in (
        (no_compat_loss(QUERY, fresh, filled), no_compat_loss(QUERY, fresh[:, :6], mask(6))),
        (
            ranking_alignment_loss(QUERY, block(OLD), fresh, filled),
            ranking_alignment_loss(QUERY, block(OLD), fresh[:, :6], mask(6)),
        ),
    ):
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)
        (gradient,) = torch.autograd.grad(found.sum(), fresh)
        assert gradient.isfinite().all()
        assert not gradient[:, 6:].any()
    pair = torch.tensor([[True, True, False]])
    assert embedding_alignment_loss(block(OLD), block(FRESH), pair) == pytest.approx(
        embedding_alignment_loss(block(OLD[:2]), block(FRESH[:2]), mask(2))
    )


def test_loss_of_a_positive_without_other_documents_is_zero() -> None:
    alone = torch.tensor([[True, False, False]])
    assert no_compat_loss(QUERY, block(OLD), alone).item() == 0
    assert ranking_alignment_loss(QUERY, block(OLD[:1]), block(FRESH), alone).item() == 0


def test_ranking_alignment_loss_of_huge_scores_is_finite() -> None:
    fresh = block(FRESH, NEW) * 10
    found = ranking_alignment_loss(QUERY * 100, block(OLD) * 10, fresh, mask(6))
    assert math.isfinite(found.item())
    assert found.item() > 0
