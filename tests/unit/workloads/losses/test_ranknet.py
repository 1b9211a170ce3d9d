"""Losses of pairs of documents against their formulas, published values and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.losses.ranknet import (
    adaptive_margin_ranking_loss,
    adaptive_ranknet_loss,
    bounded,
    margin_ranking_loss,
    ranknet_loss,
    unbounded,
)

# Six pairs with every preference, and grades with every kind of gap.
S_I = torch.tensor([1.2793, 0.0992, -2.3538, 0.9302, 0.9157, 2.734], dtype=torch.float64)
S_J = torch.tensor([2.3823, 1.4701, 1.4418, -1.2816, -0.0995, -0.9432], dtype=torch.float64)
PREFERENCE = torch.tensor([1.0, 0.0, -1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
Y_I = torch.tensor([1.0, 1.0, 2.0, 1.0, 0.0, 1.0], dtype=torch.float64)
Y_J = torch.tensor([1.0, 3.0, 1.0, 4.0, 2.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("sigma", [1.0, 0.5, 3.8555])
def test_ranknet_is_the_cross_entropy_of_two_probabilities(sigma: float) -> None:
    expected = []
    for i, j, s in zip(S_I.tolist(), S_J.tolist(), PREFERENCE.tolist()):
        p, target = 1 / (1 + math.exp(-sigma * (i - j))), (1 + s) / 2
        expected.append(-target * math.log(p) - (1 - target) * math.log(1 - p))
    assert ranknet_loss(S_I, S_J, PREFERENCE, sigma).tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("sigma", "mean"), [(1.0, 0.9358978550570317), (0.5, 0.7047418714040025)])
def test_ranknet_mean_matches_reference_value(sigma: float, mean: float) -> None:
    assert ranknet_loss(S_I, S_J, PREFERENCE, sigma).mean().item() == pytest.approx(mean, rel=1e-12)


def test_ranknet_loss_rises_with_the_score_gap_of_a_wrong_order() -> None:
    """E-R1: with S = -1 the loss with the printed minus sign falls without bound; with the derived plus it rises."""
    d = torch.tensor([0.0, 10.0, 60.0])
    ours = ranknet_loss(d, torch.zeros(3), torch.full((3,), -1.0))
    printed = -d + torch.nn.functional.softplus(-d)
    assert ours.tolist() == pytest.approx([math.log(2), 10, 60], rel=1e-4)
    assert printed[2] == pytest.approx(-60)


def test_ranknet_gradient_is_sigma_times_the_difference_of_probabilities() -> None:
    s_i = S_I.clone().requires_grad_()
    torch.autograd.backward(ranknet_loss(s_i, S_J, PREFERENCE, 3.8555).sum())
    expected = 3.8555 * (torch.sigmoid(3.8555 * (S_I - S_J)) - (1 + PREFERENCE) / 2)
    torch.testing.assert_close(s_i.grad, expected)
    assert s_i.grad[0].item() == pytest.approx(-3.8014173856737083)


def test_ranknet_loss_of_equal_grades_rises_with_the_score_difference() -> None:
    far, near = (ranknet_loss(torch.tensor([d]), torch.zeros(1), torch.zeros(1)).item() for d in (3.0, 0.0))
    assert near == pytest.approx(math.log(2))
    assert far > near


def test_huge_scores_neither_overflow_nor_lose_the_tail() -> None:
    s_i, s_j = torch.tensor([1e4, -1e4, 50.0]), torch.tensor([-1e4, 1e4, 0.0])
    found = ranknet_loss(s_i, s_j, torch.ones(3))
    assert found[:2].tolist() == [0, 2e4]
    assert found[2].item() == pytest.approx(math.exp(-50), rel=1e-6)


def test_larger_sigma_raises_the_ranknet_loss_only_of_a_wrong_order() -> None:
    """E-R2."""
    right, wrong = torch.tensor([2.0]), torch.tensor([-2.0])
    zero, one = torch.zeros(1), torch.ones(1)
    assert ranknet_loss(wrong, zero, one, 3.0) > ranknet_loss(wrong, zero, one, 1.0)
    assert ranknet_loss(right, zero, one, 3.0) < ranknet_loss(right, zero, one, 1.0)


def test_margin_ranking_is_the_hinge_over_pairs_with_a_preference() -> None:
    found = margin_ranking_loss(S_I, S_J, PREFERENCE, 0.2861)
    hinge = [max(0.0, 0.2861 - s * (i - j)) for i, j, s in zip(S_I.tolist(), S_J.tolist(), PREFERENCE.tolist())]
    assert found.tolist() == pytest.approx([value * (s != 0) for value, s in zip(hinge, PREFERENCE.tolist())])
    assert found.sum().item() / 4 == pytest.approx(0.6725999999999999)


def test_margin_ranking_loss_and_gradient_of_ties_are_zero() -> None:
    s_i = S_I.clone().requires_grad_()
    found = margin_ranking_loss(s_i, S_J, torch.zeros(6), 1.0)
    torch.autograd.backward(found.sum())
    assert found.tolist() == [0] * 6
    assert s_i.grad.tolist() == [0] * 6
    at_the_kink = margin_ranking_loss(torch.ones(1), torch.zeros(1), torch.ones(1), 1.0)
    assert at_the_kink.item() == 0


def test_adaptive_margin_grows_with_the_gap_of_grades() -> None:
    """E-R4."""
    found = adaptive_margin_ranking_loss(S_I, S_J, Y_I, Y_J, 1.0, 4.0)
    expected = [
        max(0.0, abs(a - b) / 4 - math.copysign(1, a - b) * (i - j)) if a != b else 0.0
        for i, j, a, b in zip(S_I.tolist(), S_J.tolist(), Y_I.tolist(), Y_J.tolist())
    ]
    assert found.tolist() == pytest.approx(expected)
    assert found.sum().item() / 5 == pytest.approx(1.70452)


def test_adaptive_ranknet_loss_and_gradient_match_reference() -> None:
    """E-R5: σ |y_i - y_j| / gap_max, and σ with S = 0 for equal grades."""
    s_i = S_I.clone().requires_grad_()
    found = adaptive_ranknet_loss(s_i, S_J, Y_I, Y_J, 2.0, 4.0)
    torch.autograd.backward(found.mean())
    assert found.mean().item() == pytest.approx(1.3827474309443517)
    assert s_i.grad[:3].tolist() == pytest.approx([-0.13359567347307, 0.03374574613080, -0.07247019386910])


def test_with_two_grades_the_adaptive_losses_are_the_plain_ones() -> None:
    y_i, y_j = (PREFERENCE > 0).double(), (PREFERENCE < 0).double()
    adaptive, plain = adaptive_margin_ranking_loss(S_I, S_J, y_i, y_j), margin_ranking_loss(S_I, S_J, PREFERENCE)
    torch.testing.assert_close(adaptive, plain)
    torch.testing.assert_close(adaptive_ranknet_loss(S_I, S_J, y_i, y_j), ranknet_loss(S_I, S_J, PREFERENCE))


def test_bounded_parameter_stays_within_its_bounds() -> None:
    assert bounded(torch.tensor(0.6925, dtype=torch.float64)).item() == pytest.approx(1.3663933831847135)
    assert bounded(torch.tensor([-1e3, 1e3])).tolist() == pytest.approx([0.1, 2.0])
    assert bounded(unbounded(0.7)).item() == pytest.approx(0.7)


def test_gradient_of_a_learnable_margin_shrinks_it() -> None:
    """E-R4: therefore a learnable margin needs a lower bound."""
    raw = torch.zeros(1, requires_grad=True)
    loss = margin_ranking_loss(torch.zeros(3), torch.zeros(3), torch.ones(3), bounded(raw)).mean()
    torch.autograd.backward(loss)
    assert raw.grad.item() > 0
