"""Pairwise losses against the formula, term by term."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from workloads.losses.pairwise import (
    bce_loss,
    bpr_loss,
    debiased_probability,
    dpl_loss,
    gbpr_loss,
    mpr_loss,
    reweighted_bce_loss,
    supervised_loss,
    truncated_bce_loss,
    truncated_bpr_loss,
    truncated_share,
)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _scores(seed: int, *shape: int, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale


def test_bpr_loss_matches_the_formula() -> None:
    torch.manual_seed(0)
    positive, negative = torch.randn(2, 200, dtype=torch.float64) * 4
    expected = [-math.log(1 / (1 + math.exp(-(p - n)))) for p, n in zip(positive.tolist(), negative.tolist())]
    assert bpr_loss(positive, negative).tolist() == pytest.approx(expected, rel=1e-12)


def test_bpr_loss_matches_expected_values() -> None:
    assert bpr_loss(torch.ones(2), torch.ones(2)).tolist() == pytest.approx([math.log(2)] * 2)
    assert bpr_loss(torch.tensor([0.0]), torch.tensor([math.log(3)])).item() == pytest.approx(math.log(4))


def test_bpr_neither_overflows_nor_loses_the_tail() -> None:
    positive = torch.tensor([-1e4, 1e4, 50.0])
    value = bpr_loss(positive, torch.zeros(3))
    assert value[:2].tolist() == [1e4, 0]
    assert value[2].item() == pytest.approx(math.exp(-50), rel=1e-6)


def test_bpr_gradient_matches_the_formula() -> None:
    """d/dx_ui = -(1 - σ(x_ui - x_uj)), the thesis' info(j) of (4.4), and its opposite for x_uj."""
    torch.manual_seed(1)
    positive, negative = (torch.randn(50, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.autograd.backward(bpr_loss(positive, negative).sum())
    info = 1 - torch.sigmoid(positive - negative).detach()
    torch.testing.assert_close(positive.grad, -info)
    torch.testing.assert_close(negative.grad, info)


@pytest.mark.parametrize("loss", [bpr_loss, bce_loss])
def test_bpr_and_bce_return_one_value_per_positive(loss: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(2)
    positive, negative = (torch.randn(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert loss(positive, negative).shape == (7,)
    assert loss(positive[:0], negative[:0]).shape == (0,)
    assert torch.autograd.gradcheck(loss, (positive, negative))


def test_bce_is_the_mean_of_both_classes() -> None:
    positive, negative = _scores(3, 2, 50)
    expected = [-(math.log(_sigmoid(p)) + math.log(1 - _sigmoid(n))) / 2 for p, n in zip(positive, negative)]
    assert bce_loss(positive, negative).tolist() == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.gradcheck(bce_loss, (positive.requires_grad_(), negative.detach().requires_grad_()))
    assert bce_loss(torch.tensor([1e4, -1e4]), torch.tensor([-1e4, 1e4])).tolist() == [0, 1e4]


@pytest.mark.parametrize("tau", [0.0, 0.1, 0.9])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (4, 1), (5, 5), (3, 0)])
def test_dpl_loss_matches_the_formula(n: int, m: int, tau: float) -> None:
    positive, negatives, extra = _scores(4, 20), _scores(5, 20, n), _scores(6, 20, m)
    estimates = []
    for p, xs, ms in zip(positive.tolist(), negatives.tolist(), extra.tolist()):
        estimate = sum(_sigmoid(p - x) for x in xs) / len(xs)
        if ms:
            estimate = estimate / (1 - tau) - tau / (1 - tau) * sum(_sigmoid(p - x) for x in ms) / len(ms)
        estimates.append(estimate)
    found = debiased_probability(positive, negatives, extra, tau=tau)
    assert found.tolist() == pytest.approx(estimates, rel=1e-10, abs=1e-12)
    expected = [-math.log(max(estimate, 0.03) if m else estimate) for estimate in estimates]
    assert dpl_loss(positive, negatives, extra, tau=tau, floor=0.03).tolist() == pytest.approx(expected, rel=1e-10)


def test_dpl_of_one_sample_and_no_extra_positive_is_bpr_at_any_distance() -> None:
    positive = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], requires_grad=True)
    zero = torch.zeros(5)
    loss = dpl_loss(positive, zero[:, None], torch.empty(5, 0), tau=0.4)
    expected = bpr_loss(positive, zero)
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(each.sum(), positive)[0] for each in (loss, expected)]
    torch.testing.assert_close(*gradients)


def test_dpl_with_tau_zero_does_not_depend_on_extra_positives() -> None:
    positive, negatives = _scores(7, 9, scale=1.0), _scores(8, 9, 4, scale=1.0)
    corrected = dpl_loss(positive, negatives, _scores(9, 9, 2), tau=0.0)
    torch.testing.assert_close(corrected, dpl_loss(positive, negatives, torch.empty(9, 0), tau=0.3))


def test_dpl_at_its_floor_has_no_gradient_and_above_one_a_negative_loss() -> None:
    positive = torch.tensor([0.0, 0.0], requires_grad=True)
    negatives, extra = torch.tensor([[9.0], [-9.0]]), torch.tensor([[-9.0], [9.0]])
    loss = dpl_loss(positive, negatives, extra, tau=0.5)
    assert loss.tolist() == pytest.approx([-math.log(0.01), -math.log(2 * _sigmoid(9) - _sigmoid(-9))], rel=1e-6)
    torch.autograd.backward(loss.sum())
    assert positive.grad is not None
    assert positive.grad[0] == 0
    assert positive.grad[1] != 0


def test_dpl_gradient_matches_finite_differences() -> None:
    inputs = [part.requires_grad_() for part in (_scores(10, 6) + 3, _scores(11, 6, 3), _scores(12, 6, 2))]
    assert torch.autograd.gradcheck(lambda p, x, e: dpl_loss(p, x, e, tau=0.1), inputs)
    assert torch.autograd.gradcheck(lambda p, x: dpl_loss(p, x, x[:, :0], tau=0.1), inputs[:2])


@pytest.mark.parametrize("magnitude", [1e2, 1e5, 1e30])
def test_dpl_of_huge_scores_is_finite(magnitude: float) -> None:
    signs = torch.tensor([[1.0, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1], [-1, 1, -1]]) * magnitude
    for extra in (signs[:, 2:], signs[:, :0]):
        positive = signs[:, 0].clone().requires_grad_()
        loss = dpl_loss(positive, signs[:, 1:2], extra, tau=0.3)
        (gradient,) = torch.autograd.grad(loss.sum(), positive)
        assert torch.isfinite(loss).all()
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_gbpr_loss_matches_the_formula(rho: float) -> None:
    positive, group, negative = _scores(13, 30), _scores(14, 30, 3), _scores(15, 30)
    expected = [
        -math.log(_sigmoid(rho * sum(g) / 3 + (1 - rho) * p - n))
        for p, g, n in zip(positive.tolist(), group.tolist(), negative.tolist())
    ]
    assert gbpr_loss(positive, group, negative, rho=rho).tolist() == pytest.approx(expected, rel=1e-10)
    if rho == 0:
        assert torch.equal(gbpr_loss(positive, group, negative, rho=0), bpr_loss(positive, negative))
    # With the user alone as group the loss is BPR.
    alone = gbpr_loss(positive, positive[:, None], negative, rho=rho)
    torch.testing.assert_close(alone, bpr_loss(positive, negative))


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_mpr_loss_matches_the_formula(lam: float) -> None:
    scores = _scores(16, 5, 30)
    i, i1, i2, j1, j2 = scores.tolist()
    expected = [
        -math.log(_sigmoid(lam * ((a - e) - (d - e)) + (1 - lam) * ((d - e) - (b - c))))
        for a, b, c, d, e in zip(i, i1, i2, j1, j2)
    ]
    found = mpr_loss(scores[0], (scores[1], scores[2]), (scores[3], scores[4]), lam=lam)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    if lam == 1:
        torch.testing.assert_close(found, bpr_loss(scores[0], scores[3]))


def test_truncated_bce_drops_the_largest_losses_of_positives() -> None:
    positive, negative = torch.tensor([3.0, -2.0, 0.5, -4.0]), torch.tensor([5.0, -1.0, 0.0, 2.0])
    own = [math.log1p(math.exp(-p)) for p in positive.tolist()]
    others = [math.log1p(math.exp(n)) for n in negative.tolist()]
    # 6 of 8 are kept, without -4 and -2. A negative is never dropped before a positive, even with a larger loss.
    kept = [own[0], 0, own[2], 0]
    expected = [(p + n) * 4 / 6 for p, n in zip(kept, others)]
    assert truncated_bce_loss(positive, negative, 0.25).tolist() == pytest.approx(expected, rel=1e-6)
    everything = (sum(own) + sum(others)) / 8
    assert truncated_bce_loss(positive, negative, 0).mean().item() == pytest.approx(everything)
    assert not truncated_bce_loss(positive, negative, 1).any()
    assert truncated_bce_loss(positive[:0], negative[:0], 0.2).shape == (0,)


def test_truncated_bce_has_no_gradient_for_dropped_positives() -> None:
    positive = torch.tensor([3.0, -2.0], requires_grad=True)
    torch.autograd.backward(truncated_bce_loss(positive, torch.zeros(2), 0.25).sum())
    assert positive.grad is not None
    assert positive.grad[1] == 0
    assert positive.grad[0] == pytest.approx(-_sigmoid(-3) * 2 / 3)


def test_reweighted_bce_weighs_by_its_own_probability_without_gradient() -> None:
    positive, negative = (part.requires_grad_() for part in (_scores(17, 40), _scores(18, 40)))
    weights = torch.sigmoid(positive.detach()) ** 0.25, torch.sigmoid(-negative.detach()) ** 0.25
    expected = -(weights[0] * torch.sigmoid(positive).log() + weights[1] * torch.sigmoid(-negative).log()) / 2
    found = reweighted_bce_loss(positive, negative, 0.25)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each.sum(), (positive, negative)) for each in (found, expected)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(reweighted_bce_loss(positive, negative, 0), bce_loss(positive, negative))


def test_truncated_bpr_loss_above_the_threshold_is_zero() -> None:
    positive, negative = torch.tensor([2.0, -2.0], requires_grad=True), torch.zeros(2)
    loss = truncated_bpr_loss(positive, negative, threshold=1.0)
    assert loss.tolist() == pytest.approx([math.log1p(math.exp(-2)), 0])
    (gradient,) = torch.autograd.grad(loss.sum(), positive)
    assert gradient.tolist() == pytest.approx([-_sigmoid(-2), 0])


def test_truncated_share_rises_to_its_maximum_and_stays_there() -> None:
    assert [truncated_share(step, maximum=0.2, steps=100) for step in (0, 50, 100, 500)] == [0, 0.1, 0.2, 0.2]


def test_supervised_loss_matches_the_formula() -> None:
    """(5.27) over the unmasked negatives: DPL at M = 0 without a mask, and 0 without negatives."""
    positive, negatives = _scores(1, 4).requires_grad_(), _scores(2, 4, 3)
    negatives = negatives.masked_fill(torch.tensor([[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]).bool(), -math.inf)
    negatives.requires_grad_()
    losses = supervised_loss(positive, negatives)
    expected = []
    for x, row in zip(positive.tolist(), negatives.tolist()):
        left = [_sigmoid(x - y) for y in row if y > -math.inf]
        expected.append(-math.log(sum(left) / len(left)) if left else 0.0)
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)
    assert losses[0].item() == pytest.approx(
        dpl_loss(positive[:1], negatives[:1], positive[:1, None][:, :0], tau=0).item()
    )
    of_positive, of_negatives = torch.autograd.grad(losses.sum(), [positive, negatives])
    assert of_negatives.isfinite().all()
    assert of_positive[3] == 0
    assert (of_negatives[negatives == -math.inf] == 0).all()
    assert torch.autograd.gradcheck(supervised_loss, (positive, _scores(3, 4, 3).requires_grad_()))
