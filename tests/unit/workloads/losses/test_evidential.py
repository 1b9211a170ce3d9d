"""VERA's losses against the formulas written out in double precision, closed forms, and at their limits."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.losses.evidential import (
    beta_parameters,
    candidate_loss,
    consistency_loss,
    entropy_gate,
    evidential_loss,
    group_rates,
    log1mexp,
    log_failure,
    log_hit,
    log_miss,
    quantile_groups,
    succeeds,
    top,
    vera_loss,
)
from workloads.losses.listwise import listwise_softmax_loss

INF = math.inf
SCORES = [[-0.01, 0.12, 0.63, -0.44, 1.55], [0.46, 1.1, 1.03], [1.68, -0.7, -0.86, 2.28]]
A = [[-0.88, -0.58, -1.86, 0.53, -1.65], [-0.17, 0.71, -1.58], [0.92, 1.14, 1.14, 1.14]]
B = [[1.63, 2.45, 0.12, 0.25, 1.98], [1.86, 1.61, 1.56], [0.35, 0.93, 2.07, 0.17]]
LABELS = [[1, 0, 0, 1, 0], [0, 0, 0], [0, 1, 0, 0]]
"""Three queries; the second has no positive. Expected values below come from independent slow references."""

P = torch.tensor([1 / 3, 2 / 3, 1 / 3, 0.9], dtype=torch.float64)
C = torch.tensor([0.9468, 0.3864, 0.425, 0.9], dtype=torch.float64)


def block(rows: list[list[float]], fill: float = 0.0) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*map(float, row), *[fill] * (width - len(row))] for row in rows], dtype=torch.float64)


LISTED = block([[1.0] * len(row) for row in SCORES]) > 0
POSITIVE = block(LABELS) > 0


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_beta_parameters_of_huge_inputs_are_exact() -> None:
    alpha, beta = beta_parameters(double(-800, 800), double(800, -800), 0.1, 1.0)
    assert alpha.tolist() == [0.1, 800.1]
    assert beta.tolist() == [801.0, 1.0]


def test_mu_and_its_complement_are_exact_at_both_ends() -> None:
    alpha, beta = torch.tensor([1e-9, 1e6, 0.3]), torch.tensor([1.0, 1e-3, 10.925])
    assert log_miss(alpha, beta).exp().tolist() == pytest.approx([1.0, 1e-9, 10.925 / 11.225], rel=1e-6)
    assert (-log_miss(alpha, beta).expm1()).tolist() == pytest.approx([1e-9, 1.0, 0.3 / 11.225], rel=1e-5)
    assert log_hit(alpha, beta).exp().tolist() == pytest.approx([1e-9, 1.0, 0.3 / 11.225], rel=1e-5)


def test_top_is_descending_with_ties_by_column() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 0.0, -INF]])
    assert top(scores, 3).tolist() == [[1, 2, 0]]
    assert top(scores, 50).shape == (1, 5)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 0.18554310011596442), (3, 0.3636343425955229), (50, 0.6777003074874864)]
)
def test_success_probability_matches_reference(k: int, expected: float) -> None:
    alpha = double(1.563, 0.3, 2.467, 0.24, 2.265, 2.316, 0.242, 0.48)[None]
    beta = double(5.701, 10.925, 19.564, 13.254, 9.777, 9.428, 2.485, 2.107)[None]
    scores = double(-0.5, 0.1, -1.1, -0.2, -0.9, 1.2, -0.5, 2.6)[None]
    found = log_failure(log_miss(alpha, beta), top(scores, k), torch.ones_like(scores, dtype=torch.bool))
    assert -found.expm1().item() == pytest.approx(expected, rel=1e-12)


def test_log_failure_uses_all_candidates_if_there_are_fewer_than_k() -> None:
    alpha, beta = beta_parameters(block(A), block(B), 0.1, 1.0)
    found = log_failure(log_miss(alpha, beta), top(block(SCORES, -INF), 4), LISTED)
    assert found[1].item() == pytest.approx(log_miss(alpha, beta)[1, :3].sum().item())


def test_log_failure_is_accurate_where_the_product_underflows() -> None:
    alpha, beta = torch.full((1, 10), 1e4), torch.full((1, 10), 1e-3)
    scores = torch.zeros(1, 10)
    found = log_failure(log_miss(alpha, beta), top(scores, 10), torch.ones(1, 10, dtype=torch.bool))
    assert found.item() == pytest.approx(-161.18095750958312, rel=1e-6)
    assert math.isfinite(vera_loss(found, torch.tensor([0.5]), torch.tensor([0.0])).item())


@pytest.mark.parametrize("x", [-1e-12, -1e-5, -0.5, -0.7, -30.0, -700.0])
def test_log1mexp_and_its_gradient_match_closed_forms(x: float) -> None:
    point = double(x).requires_grad_()
    found = log1mexp(point)
    (gradient,) = torch.autograd.grad(found.sum(), point)
    exact = math.log(-math.expm1(x)) if x > -1 else math.log1p(-math.exp(x))
    assert found.item() == pytest.approx(exact, rel=1e-12, abs=1e-300)
    assert gradient.item() == pytest.approx(-1 / math.expm1(-x), rel=1e-9)


def test_query_succeeds_if_a_positive_is_among_the_top_k() -> None:
    columns = top(block(SCORES, -INF), 2)
    assert succeeds(POSITIVE, columns).tolist() == [False, False, False]
    assert succeeds(POSITIVE, top(block(SCORES, -INF), 5)).tolist() == [True, False, True]


def test_quantile_groups_match_expected_values() -> None:
    c = double(0.9468, 0.8764, 0.3864, 0.5995, 0.8302, 0.8158, 0.5044, 0.4396, 0.3042, 0.2816, 0.2629, 0.425)
    assert quantile_groups(c, 3).tolist() == [2, 2, 0, 1, 2, 2, 1, 1, 0, 0, 0, 1]
    assert quantile_groups(double(*[0.5] * 5), 2).tolist() == [0, 0, 0, 1, 1]
    assert quantile_groups(double(), 3).tolist() == []


def test_group_rates_shrink_small_groups() -> None:
    success, groups = double(1, 0, 1, 0, 1), torch.tensor([0, 0, 0, 0, 2])
    assert group_rates(success, groups).tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 2 / 3])


def test_entropy_gate_matches_reference() -> None:
    assert entropy_gate(double(0, 1, 0.5, 0.9334)).tolist() == pytest.approx([1, 1, 0, 0.6468945401808281])


def slow_vera(p: float, forward_p: float, c: float, alpha: float, beta: float) -> float:
    def kl(first: float, second: float) -> float:
        pairs = ((first, second), (1 - first, 1 - second))
        return sum(x * math.log(x / y) for x, y in pairs if x > 0)

    entropy = -sum(x * math.log(x) for x in (p, 1 - p))
    gate = 1 - entropy / math.log(2)
    return alpha * kl(forward_p, c) + (1 - alpha) * kl(c, p) + beta * gate * kl(forward_p, c)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(0.7, 1.0), (1.0, 0.0), (0.0, 0.0), (0.3776, 1.8333)])
def test_vera_loss_and_its_gradient_match_reference(alpha: float, beta: float, one_hot: bool) -> None:
    target = (P > 0.5).double() if one_hot else P
    logit = C.logit().requires_grad_()
    found = vera_loss(torch.nn.functional.logsigmoid(-logit), P, target, alpha, beta)
    expected = [slow_vera(p, t, c, alpha, beta) for p, t, c in zip(P.tolist(), target.tolist(), C.tolist())]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), logit)
    weight = alpha + beta * entropy_gate(P)
    closed = weight * (C - target) + (1 - alpha) * C * (1 - C) * (C.logit() - P.logit())
    torch.testing.assert_close(gradient, closed)


def test_vera_gradient_at_the_true_rate_is_zero_only_with_hybrid_targets() -> None:
    rate = double(*[0.2] * 1000)
    success = (torch.arange(1000) < 200).double()

    def slope(p: torch.Tensor, target: torch.Tensor) -> float:
        logit = torch.tensor(math.log(0.25), dtype=torch.float64, requires_grad=True)
        loss = vera_loss(torch.nn.functional.logsigmoid(-logit.expand(1000)), p, target).mean()
        return torch.autograd.grad(loss, logit)[0].item()

    assert slope(rate, success) == pytest.approx(0, abs=1e-12)
    clipped = success.clamp(0.03, 0.97)
    assert abs(slope(clipped, clipped)) > 1e-4


def test_saturated_confidences_keep_finite_losses_and_gradients() -> None:
    failures = double(-80.0, -1e-12).requires_grad_()
    found = vera_loss(failures, double(0.95, 0.05), double(0.95, 0.05))
    assert found.tolist() == pytest.approx([5.389178407799852, 1.687731012630839], rel=1e-9)
    (gradient,) = torch.autograd.grad(found.sum(), failures)
    assert gradient.isfinite().all()


def test_vera_loss_with_a_probability_of_one_is_infinite() -> None:
    assert vera_loss(double(math.log(0.1)), double(1.0), double(1.0)).item() == INF


def test_candidate_loss_matches_reference() -> None:
    alpha, beta = beta_parameters(block(A), block(B), 0.1, 1.0)
    found = candidate_loss(alpha, beta, POSITIVE, LISTED, 0.05)
    assert found[1].item() == 0
    assert found.sum().item() / 2 == pytest.approx(1.2142506642816127, rel=1e-9)


def test_candidate_loss_of_positives_only_has_no_negative_term() -> None:
    alpha, beta = double(1.0, 3.0)[None], double(1.0, 1.0)[None]
    every = torch.ones(1, 2, dtype=torch.bool)
    expected = (math.log(2) + math.log(4 / 3)) / 2
    assert candidate_loss(alpha, beta, every, every, 0.05).item() == pytest.approx(expected)


def test_candidate_loss_weights_do_not_depend_on_the_class_sizes() -> None:
    a = torch.zeros(1, 10_000, requires_grad=True)
    alpha, beta = beta_parameters(a, torch.zeros_like(a), 0.05, 1.0)
    positive = torch.zeros(1, 10_000, dtype=torch.bool)
    positive[0, 17] = True
    loss = candidate_loss(alpha, beta, positive, torch.ones_like(positive), 0.05)
    (gradient,) = torch.autograd.grad(loss.sum(), a)
    # The classes have weights 1 and λ_neg, independent of their sizes; softplus has the slope 1/2 at 0.
    at_0 = math.log(2)
    total = 1.05 + 2 * at_0
    assert gradient[0, 17].item() == pytest.approx(-0.5 * (1 + at_0) / (0.05 + at_0) / total, rel=1e-5)
    assert gradient[~positive].sum().item() == pytest.approx(0.05 * 0.5 / total, rel=1e-4)


def test_consistency_loss_matches_reference() -> None:
    alpha, beta = beta_parameters(block(A), block(B), 0.1, 1.0)
    found = consistency_loss(block(SCORES, -INF), alpha, beta, LISTED).sum() / LISTED.sum()
    assert found.item() == pytest.approx(0.19146234402898887, rel=1e-9)


def test_evidential_baseline_is_binary_cross_entropy_of_mu() -> None:
    alpha, beta = beta_parameters(block(A), block(B), 0.1, 1.0)
    mu = alpha / (alpha + beta)
    each = torch.nn.functional.binary_cross_entropy(mu, POSITIVE.double(), reduction="none")
    torch.testing.assert_close(evidential_loss(alpha, beta, POSITIVE, LISTED), (each * LISTED).sum(1))


def test_listwise_softmax_loss_matches_reference() -> None:
    found = listwise_softmax_loss(block(SCORES, -INF) / 0.5, POSITIVE.double())
    assert found[1].item() == 0
    assert found.mean().item() == pytest.approx(3.3409073698004392, rel=1e-9)
