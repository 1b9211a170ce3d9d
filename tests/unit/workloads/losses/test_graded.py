"""Losses on graded pairs against the formulas written out, the reference values and PyTorch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from workloads.losses.graded import cosent_loss, cosine_embedding_loss, cosine_mse_loss, cosine_target

COSINES = torch.tensor([0.9, -0.2, 0.4, 0.4, 0.0], dtype=torch.float64)
GRADES = torch.tensor([5.0, 0.6, 2.5, 4.0, 2.5], dtype=torch.float64)


def test_grades_are_mapped_to_the_scale_of_a_cosine() -> None:
    """E-S0; a hidden grade becomes NaN (E-S1)."""
    found = cosine_target(torch.tensor([0.0, 5.0, 2.5, 0.6, 4.2261], dtype=torch.float64), -1.0)
    assert found.tolist() == pytest.approx([-1.0, 1.0, 0.0, -0.76, 0.6904399999999999], abs=1e-12)
    assert cosine_target(torch.tensor([-1.0, 5.1, math.nan])).isnan().all()
    assert cosine_target(torch.tensor([-1.0, 5.1, math.nan]), -1.0).isnan().all()
    assert cosine_target(torch.tensor([0.0, 2.5, 5.0])).tolist() == [0.0, 0.5, 1.0]


def test_cosine_mse_loss_is_the_squared_error_to_the_target() -> None:
    expected = [(0.9 - 1) ** 2, (-0.2 + 0.76) ** 2, 0.16, (0.4 - 0.6) ** 2, 0.0]
    assert cosine_mse_loss(COSINES, GRADES, -1.0).tolist() == pytest.approx(expected)
    assert cosine_mse_loss(COSINES, GRADES)[1].item() == pytest.approx((-0.2 - 0.12) ** 2)


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_cosine_embedding_loss_equals_that_of_pytorch(margin: float) -> None:
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, 5, generator=source, dtype=torch.float64) for _ in range(2))
    positive = torch.arange(8) % 3 == 0
    expected = functional.cosine_embedding_loss(a, b, positive * 2 - 1, margin, reduction="none")
    found = cosine_embedding_loss(functional.cosine_similarity(a, b), positive, margin)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_cosent_is_the_log_of_one_plus_the_sum_over_all_ordered_pairs(temperature: float) -> None:
    total = 1.0
    for i, one in enumerate(GRADES.tolist()):
        for j, other in enumerate(GRADES.tolist()):
            if one > other:
                total += math.exp((COSINES[j] - COSINES[i]).item() / temperature)
    assert cosent_loss(COSINES, GRADES, temperature).item() == pytest.approx(math.log(total))


def test_cosent_depends_only_on_the_order_of_the_grades() -> None:
    assert torch.equal(cosent_loss(COSINES, GRADES), cosent_loss(COSINES, GRADES.square() + 3))


def test_cosent_gradient_matches_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda cosines: cosent_loss(cosines, GRADES, 0.5), COSINES.clone().requires_grad_())


def test_cosent_loss_and_gradient_of_equal_grades_are_zero() -> None:
    cosines = COSINES.clone().requires_grad_()
    loss = cosent_loss(cosines, torch.ones(5))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, cosines)[0].any()


def test_cosent_does_not_overflow() -> None:
    found = cosent_loss(torch.tensor([-1.0, 1.0]), torch.tensor([5.0, 0.0]), 1e-3)
    assert found.item() == pytest.approx(2000)
