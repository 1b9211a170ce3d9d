"""Pairwise losses against the formula, term by term."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.losses.pairwise import PAIRWISE, bpr_loss


def test_bpr_is_the_formula() -> None:
    torch.manual_seed(0)
    positive, negative = torch.randn(2, 200, dtype=torch.float64) * 4
    expected = [-math.log(1 / (1 + math.exp(-(p - n)))) for p, n in zip(positive.tolist(), negative.tolist())]
    assert bpr_loss(positive, negative).tolist() == pytest.approx(expected, rel=1e-12)


def test_bpr_known_values() -> None:
    assert bpr_loss(torch.ones(2), torch.ones(2)).tolist() == pytest.approx([math.log(2)] * 2)
    assert bpr_loss(torch.tensor([0.0]), torch.tensor([math.log(3)])).item() == pytest.approx(math.log(4))


def test_bpr_neither_overflows_nor_loses_the_tail() -> None:
    positive = torch.tensor([-1e4, 1e4, 50.0])
    value = bpr_loss(positive, torch.zeros(3))
    assert value[:2].tolist() == [1e4, 0]
    assert value[2].item() == pytest.approx(math.exp(-50), rel=1e-6)


def test_bpr_gradient() -> None:
    """d/dx_ui = -(1 - σ(x_ui - x_uj)), the thesis' info(j) of (4.4), and its opposite for x_uj."""
    torch.manual_seed(1)
    positive, negative = (torch.randn(50, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.autograd.backward(bpr_loss(positive, negative).sum())
    info = 1 - torch.sigmoid(positive - negative).detach()
    torch.testing.assert_close(positive.grad, -info)
    torch.testing.assert_close(negative.grad, info)


@pytest.mark.parametrize("name", sorted(PAIRWISE))
def test_every_loss_gives_one_value_a_positive(name: str) -> None:
    torch.manual_seed(2)
    positive, negative = (torch.randn(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    loss = PAIRWISE[name]
    assert loss(positive, negative).shape == (7,)
    assert loss(positive[:0], negative[:0]).shape == (0,)
    assert torch.autograd.gradcheck(loss, (positive, negative))
