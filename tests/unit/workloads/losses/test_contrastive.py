"""Contrastive losses against the formulas written out term by term, their limits and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.losses import contrastive
from workloads.losses.contrastive import (
    Floor,
    alpha_from_auc,
    bcl_loss,
    bcl_phi,
    bcl_weights,
    bcl_weights_at,
    dcl_loss,
    decoupled_loss,
    hcl_loss,
    infonce_loss,
    view_infonce_loss,
)
from workloads.losses.pairwise import bpr_loss

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
FLOORS: tuple[Floor, ...] = ("cosine", "minimum", "none")


def _infonce(positive: torch.Tensor, negatives: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    return infonce_loss(positive, negatives, 0.5)


def _decoupled(positive: torch.Tensor, negatives: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    return decoupled_loss(positive, negatives, 0.5)


def _bcl(positive: torch.Tensor, negatives: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    return bcl_loss(positive, negatives, alpha=0.9, beta=0.7, tau=0.1, temperature=0.5)


LOSSES: dict[str, Loss] = {"infonce": _infonce, "decoupled": _decoupled, "bcl": _bcl}
for _floor in FLOORS:
    LOSSES[f"dcl_{_floor}"] = partial(dcl_loss, tau=0.1, temperature=0.5, floor=_floor)
    LOSSES[f"hcl_{_floor}"] = partial(hcl_loss, tau=0.1, beta=1.3, temperature=0.5, floor=_floor)
SAFE = sorted(name for name in LOSSES if not name.endswith("none"))
"""Losses without a logarithm of a value that may be negative."""


def _scores(seed: int, batch: int = 6, n: int = 7, m: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random cosines: positive (batch,), negatives (batch, n) and extra positives (batch, m)."""
    source = torch.Generator().manual_seed(seed)
    draw = [torch.rand(batch, k, generator=source, dtype=torch.float64) * 2 - 1 for k in (1, n, m)]
    return draw[0].squeeze(1), draw[1], draw[2]


def _rows(*scores: torch.Tensor) -> list[tuple[float, list[float], list[float]]]:
    return list(zip(*(part.tolist() for part in scores)))


def test_infonce_loss_matches_the_formula() -> None:
    positive, negatives, extra = _scores(0)
    expected = [
        -math.log(math.exp(p / 0.5) / (math.exp(p / 0.5) + sum(math.exp(x / 0.5) for x in xs)))
        for p, xs, _ in _rows(positive, negatives, extra)
    ]
    assert infonce_loss(positive, negatives, 0.5).tolist() == pytest.approx(expected, rel=1e-12)


def test_infonce_is_cross_entropy_and_with_one_sample_bpr() -> None:
    positive, negatives, _ = _scores(1)
    logits = torch.cat([positive[:, None], negatives], 1) / 0.2
    first = torch.zeros(len(positive), dtype=torch.int64)
    expected = torch.nn.functional.cross_entropy(logits, first, reduction="none")
    torch.testing.assert_close(infonce_loss(positive, negatives, 0.2), expected)
    torch.testing.assert_close(infonce_loss(positive, negatives[:, :1]), bpr_loss(positive, negatives[:, 0]))


def test_decoupled_loss_is_infonce_without_positive_in_denominator() -> None:
    positive, negatives, _ = _scores(2)
    expected = -(positive / 0.3 - (negatives / 0.3).exp().sum(1).log())
    torch.testing.assert_close(decoupled_loss(positive, negatives, 0.3), expected)


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("tau", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("m", [0, 1, 4])
def test_dcl_and_hcl_losses_match_the_formula(floor: Floor, beta: float, tau: float, m: int) -> None:
    positive, negatives, extra = _scores(3, m=m)
    # The extra positives are low, so that the argument of the logarithm is positive also without a floor.
    extra = extra / 2 - 0.5
    t = 0.5
    expected = []
    for p, xs, ms in _rows(positive, negatives, extra):
        mean = sum(math.exp(beta * x / t) for x in xs) / len(xs)
        among = sum(math.exp(beta * x / t) / mean * math.exp(x / t) for x in xs)
        if ms:
            among = (among - len(xs) * tau * sum(math.exp(x / t) for x in ms) / len(ms)) / (1 - tau)
            least = {"cosine": math.exp(-1 / t), "minimum": math.exp(min(xs) / t), "none": -math.inf}[floor]
            among = max(among, len(xs) * least)
        expected.append(-math.log(math.exp(p / t) / (math.exp(p / t) + among)))
    assert all(map(math.isfinite, expected))
    found = hcl_loss(positive, negatives, extra, tau=tau, beta=beta, temperature=t, floor=floor)
    assert found.tolist() == pytest.approx(expected, rel=1e-10)
    if beta == 0:
        assert torch.equal(found, dcl_loss(positive, negatives, extra, tau=tau, temperature=t, floor=floor))
    if beta == 0 and (tau == 0 or m == 0):
        torch.testing.assert_close(found, infonce_loss(positive, negatives, t))


def test_floor_bounds_the_dcl_loss_where_the_correction_exceeds_the_sample() -> None:
    positive, negatives = torch.tensor([0.3]), torch.tensor([[-0.4, 0.1]])
    extra = torch.tensor([[1.0]])  # its share tau exceeds the whole sample
    for floor, least in (("cosine", -1.0), ("minimum", -0.4)):
        scores = negatives.clone().requires_grad_()
        loss = dcl_loss(positive, scores, extra, tau=0.9, floor=floor)
        assert loss.item() == pytest.approx(math.log1p(2 * math.exp(least - 0.3)), rel=1e-6)
        torch.autograd.backward(loss.sum())
        assert scores.grad is not None
        assert not scores.grad.any()
    assert dcl_loss(positive, negatives, extra, tau=0.9, floor="none").isnan().all()


def test_equal_scores_on_the_floor_keep_their_gradient_without_correction() -> None:
    """Without a correction equal scores lie exactly on the floor."""
    negatives = torch.zeros(1, 3, requires_grad=True)
    torch.autograd.backward(dcl_loss(torch.zeros(1), negatives, torch.zeros(1, 0), tau=0.1).sum())
    torch.testing.assert_close(negatives.grad, torch.full((1, 3), 0.25))


def _omega(phi: float, alpha: float, beta: float, tau: float) -> float:
    """Thesis (6.25) with (6.26), as printed."""
    z = (1 - beta) * alpha + beta * (1 - alpha)
    below = alpha * (1 - tau) + (1 - alpha) * tau + (1 - 2 * alpha) * phi * ((1 - tau) - tau)
    return ((1 - beta) * alpha + (beta - alpha) * phi) / below / z


@given(phi=st.floats(0, 1), alpha=st.floats(0.5, 0.999), beta=st.floats(0, 1), tau=st.floats(0, 0.99))
@settings(max_examples=200, deadline=None)
def test_bcl_weights_match_the_formula(phi: float, alpha: float, beta: float, tau: float) -> None:
    a, b = (1 - 2 * alpha) * (1 - 2 * tau), 2 * (alpha * (1 - tau) + (1 - alpha) * tau)
    unlabelled = torch.tensor(a * phi**2 + b * phi, dtype=torch.float64)
    assert bcl_phi(unlabelled, alpha, tau).item() == pytest.approx(phi, abs=1e-10)
    found = bcl_weights_at(unlabelled, alpha=alpha, beta=beta, tau=tau).item()
    assert found == pytest.approx(_omega(phi, alpha, beta, tau), rel=1e-6, abs=1e-9)


@given(
    alpha=st.floats(0.5, 1) | st.floats(0, 1e-3).map(lambda near: 1 - near),
    beta=st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1),
    tau=st.sampled_from([0.0, 0.5]) | st.floats(0, 0.999),
    n=st.integers(1, 70),
)
@settings(max_examples=300, deadline=None)
def test_bcl_weights_are_finite_and_not_negative_in_single_precision(
    alpha: float, beta: float, tau: float, n: int
) -> None:
    weights = bcl_weights_at((torch.arange(n) + 1) / n, alpha=alpha, beta=beta, tau=tau)
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()


def test_bcl_weights_match_closed_forms_at_their_limits() -> None:
    places = torch.linspace(0, 1, 11, dtype=torch.float64)
    ones = torch.ones_like(places)
    torch.testing.assert_close(bcl_weights_at(places, alpha=0.5, beta=0.5, tau=0.2), ones)
    # Uninformative scores and full hardness: the target is the larger of two draws, so the weight is twice the place.
    torch.testing.assert_close(bcl_weights_at(places, alpha=0.5, beta=1.0, tau=0.2), 2 * places)
    # With a perfect encoder and no positives among the samples there is nothing to correct.
    torch.testing.assert_close(bcl_weights_at(places, alpha=1.0, beta=0.5, tau=0.0), ones)
    # α = β = 1: the limit of β = 1 as α goes to 1.
    near = bcl_weights_at(places, alpha=1 - 1e-12, beta=1.0, tau=0.3)
    torch.testing.assert_close(bcl_weights_at(places, alpha=1.0, beta=1.0, tau=0.3), near, rtol=1e-6, atol=1e-6)
    # a = 0 with τ+ = .5: Φ is Φ_UN.
    torch.testing.assert_close(bcl_phi(places, 0.8, 0.5), places)


def test_bcl_weights_fall_with_the_score_unless_beta_is_high() -> None:
    places = torch.linspace(0, 1, 50, dtype=torch.float64)
    assert (bcl_weights_at(places, alpha=0.8, beta=0.5, tau=0.1).diff() < 0).all()
    assert (bcl_weights_at(places, alpha=0.8, beta=0.95, tau=0.1).diff() > 0).all()


@pytest.mark.parametrize("ties", ["le", "mid"])
@pytest.mark.parametrize(("alpha", "beta", "tau"), [(0.9, 0.5, 0.1), (0.7, 0.9, 0.3), (1.0, 1.0, 0.05)])
def test_bcl_loss_matches_reference_of_algorithm_5(ties: str, alpha: float, beta: float, tau: float) -> None:
    positive, negatives, extra = _scores(5)
    negatives = (negatives * 4).round() / 4  # ties
    expected, a = [], (1 - 2 * alpha) * (1 - 2 * tau)
    for p, xs, _ in _rows(positive, negatives, extra):
        total = 0.0
        for x in xs:
            below, equal = sum(y < x for y in xs), sum(y == x for y in xs)
            unlabelled = (below + equal * (1 if ties == "le" else 0.5)) / len(xs)
            phi = (-(1 - a) + math.sqrt((1 - a) ** 2 + 4 * a * unlabelled)) / (2 * a)
            # The printed formula is 0/0 for α = β = 1; the limit has the numerator Φ.
            omega = phi / (1 - tau + (2 * tau - 1) * phi) if alpha == beta == 1 else _omega(phi, alpha, beta, tau)
            total += omega * math.exp(x / 0.4)
        expected.append(-math.log(math.exp(p / 0.4) / (math.exp(p / 0.4) + total)))
    found = bcl_loss(positive, negatives, alpha=alpha, beta=beta, tau=tau, temperature=0.4, ties=ties)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_bcl_with_alpha_and_beta_of_one_half_equals_infonce() -> None:
    positive, negatives, _ = _scores(6)
    found = bcl_loss(positive, negatives, alpha=0.5, beta=0.5, tau=0.3, temperature=0.5)
    torch.testing.assert_close(found, infonce_loss(positive, negatives, 0.5))


def test_bcl_weights_carry_no_gradient() -> None:
    positive, negatives, _ = _scores(7)
    negatives.requires_grad_()
    weights = bcl_weights(negatives, alpha=0.9, beta=0.6, tau=0.1)
    assert not weights.requires_grad
    (gradient,) = torch.autograd.grad(bcl_loss(positive, negatives, alpha=0.9, beta=0.6, tau=0.1).sum(), negatives)
    below = (positive.exp() + (weights * negatives.exp()).sum(1)).unsqueeze(1)
    torch.testing.assert_close(gradient, (weights * negatives.exp() / below).detach())


@pytest.mark.parametrize("tau", [0.0, 0.02, 0.3])
def test_bcl_weights_of_equal_scores_depend_on_the_ties_parameter(tau: float) -> None:
    """With "le" all have place 1 (E-6.30), with "mid" place 1/2, where ω is one for a small τ+."""
    negatives = torch.zeros(2, 5, dtype=torch.float64)
    top = _omega(1.0, 0.9, 0.5, tau)
    torch.testing.assert_close(bcl_weights(negatives, alpha=0.9, beta=0.5, tau=tau), torch.full_like(negatives, top))
    middle = bcl_weights(negatives, alpha=0.9, beta=0.5, tau=tau, ties="mid")
    half = bcl_weights_at(torch.tensor(0.5, dtype=torch.float64), alpha=0.9, beta=0.5, tau=tau)
    torch.testing.assert_close(middle, half.expand_as(middle))
    assert _omega(1.0, 0.9, 0.5, 0.1) == pytest.approx(0.556, abs=1e-3)  # the value E-6.30 quotes


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_masked_samples_do_not_change_the_loss(name: str) -> None:
    positive, negatives, extra = _scores(8)
    extra = extra / 2 - 0.5
    infinite = torch.full((len(positive), 2), -math.inf, dtype=torch.float64)
    masked = torch.cat([negatives[:, :3], infinite, negatives[:, 3:]], 1)
    torch.testing.assert_close(LOSSES[name](positive, masked, extra), LOSSES[name](positive, negatives, extra))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_loss_and_gradient_of_an_anchor_without_samples_are_zero(name: str) -> None:
    positive, negatives, extra = (part.requires_grad_() for part in _scores(9, batch=2))
    masked = negatives.masked_fill(torch.tensor([[True], [False]]), -math.inf)
    loss = LOSSES[name](positive, masked, extra)
    assert loss[0] == 0
    torch.autograd.backward(loss.sum())
    for part in (positive, negatives):
        assert part.grad is not None
        assert torch.isfinite(part.grad).all()
        assert not part.grad[0].any()
        assert part.grad[1].any()
    none = LOSSES[name](positive, negatives[:, :0], extra)  # a batch of one has no other items
    assert torch.equal(none, torch.zeros_like(positive))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_return_one_value_per_anchor_with_correct_gradient(name: str) -> None:
    for n in (1, 2, 7):
        positive, negatives, extra = _scores(10 + n, n=n)
        extra = extra / 4 - 1.3  # low enough that the floor, which has no gradient, is not reached
        inputs = [part.requires_grad_() for part in (positive, negatives, extra)]
        assert LOSSES[name](*inputs).shape == (6,)
        assert torch.autograd.gradcheck(LOSSES[name], inputs)
    assert LOSSES[name](positive[:0], negatives[:0], extra[:0]).shape == (0,)


@pytest.mark.parametrize("name", SAFE)
@given(scale=st.sampled_from([1e-6, 1.0, 80.0, 1e4, 1e7]), seed=st.integers(0, 10**6), n=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_losses_and_gradients_of_huge_scores_are_finite(name: str, scale: float, seed: int, n: int) -> None:
    scores = [(part * scale).float().requires_grad_() for part in _scores(seed, n=n)]
    loss = LOSSES[name](*scores)
    assert torch.isfinite(loss).all()
    assert name == "decoupled" or (loss >= 0).all()
    gradients = torch.autograd.grad(loss.sum(), scores, allow_unused=True)
    assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)


def test_losses_of_far_apart_scores_are_accurate() -> None:
    """A positive far above the sample has the loss e^-50, not 0; one far below has its whole distance."""
    loss = infonce_loss(torch.tensor([50.0, -1e6]), torch.zeros(2, 1))
    assert loss[0].item() == pytest.approx(math.exp(-50), rel=1e-5)
    assert loss[1].item() == 1e6
    # With one huge extra positive the floor applies: ln(1 + N e^(min - x+)), here with scores of 0.
    debiased = dcl_loss(torch.zeros(1), torch.zeros(1, 2), torch.full((1, 1), 1e4), tau=0.1)
    assert debiased.item() == pytest.approx(math.log(3))


def test_alpha_from_auc_matches_expected_values() -> None:
    aucs = (0.0, 0.5, 0.7, 5 / 6, 1.0)
    assert [alpha_from_auc(auc) for auc in aucs] == pytest.approx([0.5, 0.5, 0.8, 1.0, 1.0])
    assert [alpha_from_auc(auc, literal=True) for auc in aucs] == pytest.approx([0.5, 0.5, 0.7, 5 / 6, 1.0])


@pytest.mark.parametrize(("temperature", "cached"), [(0.5, 2**18), (0.01, 10), (1.0, 10)])
def test_view_infonce_loss_and_gradient_match_reference(
    temperature: float, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks have two rows or all rows; the temperatures include one at which e^(1/t) overflows."""
    monkeypatch.setattr(contrastive, "_CACHED", cached)
    source = torch.Generator().manual_seed(1)
    anchors, candidates = (torch.randn(n, 3, generator=source, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    own, weights = torch.tensor([2, 0, 0, 4]), torch.tensor([0.5, 0.0, 0.2, 1.0], dtype=torch.float64)
    repeated = torch.tensor([True, False, True, False, False])
    for mask in (None, repeated):
        expected = torch.zeros((), dtype=torch.float64)
        for anchor, column, weight in zip(anchors, own.tolist(), weights):
            cosines = torch.stack([torch.cosine_similarity(anchor, each, dim=0) for each in candidates])
            others = [k for k in range(5) if k != column and (mask is None or not mask[k])]
            loss = infonce_loss(cosines[column].unsqueeze(0), cosines[others].unsqueeze(0), temperature)[0]
            expected = expected + weight * loss
        loss = view_infonce_loss(anchors, candidates, own, weights, temperature, mask)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
        slow = torch.autograd.grad(expected, [anchors, candidates])
        fast = torch.autograd.grad(loss * 3, [anchors, candidates])
        for one, three in zip(slow, fast):
            torch.testing.assert_close(3 * one, three)
