"""Credence: its distribution is compared with independent forms and draws, its modes with the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from workloads.recommender.credence import (
    EmpiricalScores,
    GaussianFactors,
    LogProbabilities,
    Mode,
    credence,
    interaction_scores,
    ks_distance,
    log_order_statistic,
    prior_log_odds,
    sampled_scores,
)
from workloads.recommender.product_density import REACH, log_density, look_up

MODES: tuple[Mode, ...] = ("thesis", "mean1", "bayes", "prior")


def _mixture(x: float, dim: int, variance: float) -> tuple[float, float]:
    """f(x) and F(x) as a mixture of normals: given |w|² = 2 λ s with s ~ Gamma(d/2), x is N(0, 2 λ² s).

    The trapezoid rule in ln s computes the distribution without the Bessel function.
    """
    t = np.linspace(-60, 12, 40001)
    weight = np.exp(t * dim / 2 - np.exp(t) - math.lgamma(dim / 2)) * (t[1] - t[0])
    deviation = np.sqrt(2 * np.exp(t)) * variance
    normal = np.exp(-0.5 * (x / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    return float(weight @ normal), float(weight @ ndtr(x / deviation))


@pytest.mark.parametrize(("dim", "variance"), [(2, 1.0), (3, 0.5), (27, 0.6), (64, 0.01)])
def test_density_and_distribution_match_a_mixture_of_normals(dim: int, variance: float) -> None:
    deviation = variance * math.sqrt(dim)
    x = [k * deviation for k in (-6.0, -2.1, -0.3, 0.01, 0.9, 4.0)]
    expected = np.array([_mixture(value, dim, variance) for value in x])
    place = GaussianFactors(dim, variance).log_probabilities(torch.tensor(x, dtype=torch.float64))
    exact = log_density(torch.tensor(x, dtype=torch.float64), dim, variance).exp()
    np.testing.assert_allclose(exact, expected[:, 0], rtol=1e-9)
    np.testing.assert_allclose(place.log_density.exp(), expected[:, 0], rtol=1e-6)
    np.testing.assert_allclose(place.log_below.exp(), expected[:, 1], rtol=1e-6)
    np.testing.assert_allclose(place.log_above.exp(), 1 - expected[:, 1], rtol=1e-6)


def test_density_in_two_dimensions_is_laplace() -> None:
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    torch.testing.assert_close(log_density(x, 2, 0.7), -x.abs() / 0.7 - math.log(2 * 0.7))


@pytest.mark.parametrize("dim", [1, 2, 3, 8, 27, 512])
def test_density_integrates_to_one_with_variance_d_lambda_squared(dim: int) -> None:
    u = torch.linspace(0, 1, 20001, dtype=torch.float64)[1:]
    x = u**4 * REACH * math.sqrt(dim) * 0.3  # dense at 0, where d = 1 has a pole
    density = log_density(x, dim, 0.3).exp()
    zero = torch.zeros(1, dtype=torch.float64)
    steps = torch.cat([zero, x]).diff()
    total, second = (2 * (density * x**power * steps).sum().item() for power in (0, 2))
    assert total == pytest.approx(1, abs=2e-3)
    assert second == pytest.approx(dim * 0.3**2, rel=2e-3)


@pytest.mark.parametrize("dim", [1, 2, 27, 28])
def test_inner_products_of_factors_follow_the_distribution(dim: int) -> None:
    source = torch.Generator().manual_seed(dim)
    n = 20_000
    w, h = (torch.randn(n, dim, generator=source, dtype=torch.float64) * math.sqrt(0.6) for _ in range(2))
    distance = ks_distance((w * h).sum(1), GaussianFactors(dim, 0.6)).item()
    assert distance < 1.63 / math.sqrt(n)  # the 1 % point
    assert ks_distance((w * h).sum(1), GaussianFactors(dim, 0.66)).item() > 1.63 / math.sqrt(n)


def test_the_density_at_zero_is_its_limit() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    for dim in (2, 3, 27, 512):
        limit = math.lgamma((dim - 1) / 2) - math.lgamma(dim / 2) - math.log(2 * 0.8 * math.sqrt(math.pi))
        assert log_density(zero, dim, 0.8).item() == pytest.approx(limit, rel=1e-12)
        assert log_density(zero + 1e-12, dim, 0.8).item() == pytest.approx(limit, abs=1e-9)
    assert log_density(zero, 1).item() == math.inf
    assert math.isfinite(look_up(zero, 1, 1.0)[0].item())  # the pole is cut off


def test_log_density_is_finite_far_from_zero() -> None:
    """The density itself underflows there; the slope of its logarithm tends to -1 / λ."""
    x = torch.tensor([2000.0, 2001.0], dtype=torch.float64)
    far = log_density(x, 27, 0.6)
    assert far[0] < -3000
    assert (far[1] - far[0]).item() == pytest.approx(-1 / 0.6, rel=0.01)
    assert torch.isfinite(log_density(torch.tensor([1e-9, 1e6]), 4096, 0.1)).all()


@given(dim=st.sampled_from([1, 2, 3, 27, 64, 512]), variance=st.floats(1e-4, 1e3), seed=st.integers(0, 2**20))
@settings(max_examples=30, deadline=None)
def test_lookup_table_is_symmetric_monotone_and_finite(dim: int, variance: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(64, generator=source).sort().values * math.sqrt(dim) * variance * 8
    x = torch.cat([torch.tensor([-1e30]), x, torch.tensor([1e30])])
    here, there = (GaussianFactors(dim, variance).log_probabilities(side) for side in (x, -x))
    assert torch.equal(here.log_below, there.log_above)
    assert torch.equal(here.log_density, there.log_density)
    assert (here.log_below.diff() >= 0).all()
    assert all(torch.isfinite(part).all() for part in here)
    torch.testing.assert_close(here.log_below.exp() + here.log_above.exp(), torch.ones_like(x))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 2e-6)])
def test_lookup_table_matches_the_exact_density(dtype: torch.dtype, tolerance: float) -> None:
    deviation = math.sqrt(27) * 0.6
    x = (torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 10 - 5) * deviation
    found = look_up(x.to(dtype), 27, 0.6)[0].double()
    torch.testing.assert_close(found, log_density(x.to(dtype), 27, 0.6), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 2), (2, 2), (2, 5)])
def test_order_statistic_density_matches_formula_and_draws(k: int, n: int) -> None:
    """The references are (3.21) as printed, and draws."""
    x = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    place = GaussianFactors(2, 0.5).log_probabilities(x)
    f, F = place.log_density.exp(), place.log_below.exp()
    expected = math.factorial(n) / math.factorial(k - 1) / math.factorial(n - k) * F ** (k - 1) * f * (1 - F) ** (n - k)
    density = log_order_statistic(place, k, n).exp()
    torch.testing.assert_close(density, expected)
    mean = torch.trapezoid(density * x, x)
    w, h = torch.randn(2, 20_000, n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * math.sqrt(
        0.5
    )
    draws = (w * h).sum(2).sort(1).values[:, k - 1]
    assert (draws.mean() - mean).abs() < 4 * draws.std() / math.sqrt(len(draws))


def test_prior_is_the_sigmoid_of_the_standardised_popularity() -> None:
    counts = torch.tensor([0, 3, 8, 1, 8])
    mean = 4.0
    deviation = math.sqrt(sum((n - mean) ** 2 for n in counts.tolist()) / 5)
    expected = [1 / (1 + math.exp(-(n - mean) / deviation)) for n in counts.tolist()]
    assert prior_log_odds(counts).sigmoid().tolist() == pytest.approx(expected, rel=1e-12)
    # Shares give the same prior as counts; with equal popularity all log-odds are 0.
    torch.testing.assert_close(prior_log_odds(counts / 7.0), prior_log_odds(counts), rtol=1e-6, atol=1e-6)
    for level in (torch.full((9,), 3), torch.full((9,), 0.1), torch.zeros(4), torch.ones(1)):
        assert not prior_log_odds(level).any()


@pytest.mark.parametrize("mode", MODES)
def test_credence_of_each_mode_matches_the_formula(mode: Mode) -> None:
    x = torch.linspace(-7, 7, 29, dtype=torch.float64)
    prior = torch.linspace(-3, 3, 29, dtype=torch.float64).flip(0)
    p = prior.sigmoid()
    f, F = (torch.tensor(part) for part in zip(*(_mixture(value, 5, 0.6) for value in x.tolist())))
    thesis = 2 * F * f * p
    bayes = F * p / (F * p + (1 - F) * (1 - p))
    expected = {"thesis": thesis, "mean1": thesis / thesis.mean(), "bayes": bayes, "prior": p}
    found = credence(x, prior, GaussianFactors(5, 0.6), mode)
    torch.testing.assert_close(found, expected[mode].double(), rtol=1e-6, atol=1e-9)


def test_thesis_credence_is_not_monotone_and_bayes_credence_is() -> None:
    """E-3.27: at d = 27 and λ = .6 the density has its maximum .159 at 1.48 and is .010 at 8."""
    x = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    certain = torch.full_like(x, 40.0)  # a prior of one
    density = credence(x, certain, GaussianFactors(27, 0.6), "thesis")
    assert density.max().item() == pytest.approx(0.159, abs=5e-4)
    assert x[density.argmax()].item() == pytest.approx(1.48, abs=0.02)
    assert density[x == 8].item() == pytest.approx(0.010, abs=5e-4)
    assert (credence(x, torch.zeros_like(x), GaussianFactors(27, 0.6), "bayes").diff() > 0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scores", [[0.0], [0.0, 0.0, 0.0], [-1e30, 1e30], [-1e30, -1e30], [1e-30, -1e-30]])
@pytest.mark.parametrize("prior", [-1e4, 0.0, 1e4])
def test_credence_is_finite_for_extreme_scores_and_priors(mode: Mode, scores: list[float], prior: float) -> None:
    x, odds = torch.tensor(scores), torch.full((len(scores),), prior)
    for distribution in (GaussianFactors(1, 0.1), GaussianFactors(64, 0.6), EmpiricalScores(torch.zeros(3))):
        found = credence(x, odds, distribution, mode)
        assert torch.isfinite(found).all()
        assert (found >= 0).all()
        if mode == "mean1":
            assert found.mean().item() == pytest.approx(1, rel=1e-5)
    assert credence(x[:0], odds[:0], GaussianFactors(27, 0.6), mode).shape == (0,)


def test_credence_keeps_dtype_and_has_no_gradient() -> None:
    x = torch.randn(5).requires_grad_()
    found = credence(x, prior_log_odds(torch.arange(5)), GaussianFactors(27, 0.6), "mean1")
    assert (found.dtype, found.requires_grad) == (torch.float32, False)


def test_empirical_distribution_is_computed_from_ranks() -> None:
    sample, x = torch.tensor([3.0, 1.0, 2.0, 2.0]), torch.tensor([0.0, 1.0, 2.0, 9.0])
    F = torch.tensor([0.5, 1.0, 2.5, 4.5]) / 5  # (#{<} + #{=}/2 + 1/2) / (n + 1)
    place = EmpiricalScores(sample).log_probabilities(x)
    torch.testing.assert_close(place, LogProbabilities(torch.zeros(4), F.log(), (1 - F).log()))
    torch.testing.assert_close(credence(x, torch.full((4,), 40.0), EmpiricalScores(sample), "thesis"), 2 * F)


def test_credence_by_drawn_scores_is_close_to_the_exact_credence() -> None:
    w, h = torch.randn(2, 20_000, 27, generator=torch.Generator().manual_seed(5)) * math.sqrt(0.6)
    drawn, exact = EmpiricalScores((w * h).sum(1)), GaussianFactors(27, 0.6)
    x, prior = torch.linspace(-6, 6, 50), torch.linspace(-1, 1, 50)
    difference = credence(x, prior, drawn, "bayes") - credence(x, prior, exact, "bayes")
    assert difference.abs().max() < 1.63 / math.sqrt(20_000)


def test_interaction_scores_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.Generator().manual_seed(0)
    users, items = torch.randn(7, 3, generator=source), torch.randn(9, 3, generator=source)
    pairs = torch.stack([torch.randint(7, (50,), generator=source), torch.randint(9, (50,), generator=source)])
    expected = (users @ items.T)[pairs[0], pairs[1]]
    torch.testing.assert_close(interaction_scores(users, items, pairs), expected)
    monkeypatch.setattr("workloads.recommender.credence._AT_ONCE", {"cpu": 12})
    torch.testing.assert_close(interaction_scores(users, items, pairs), expected)
    assert interaction_scores(users, items, pairs[:, :0]).shape == (0,)


def test_sampled_scores_cover_all_pairs_and_are_reproducible() -> None:
    users, items = torch.tensor([[1.0], [10.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    drawn = [sampled_scores(users, items, torch.Generator().manual_seed(3), 6000) for _ in range(2)]
    assert torch.equal(*drawn)
    values, counts = drawn[0].unique(return_counts=True)
    assert values.tolist() == [1, 2, 3, 10, 20, 30]
    assert (counts - 1000).abs().max() < 4 * math.sqrt(6000 / 6 * 5 / 6)


def test_fitted_distribution_matches_the_scores_of_the_factors() -> None:
    source = torch.Generator().manual_seed(1)
    users, items = torch.randn(4000, 8, generator=source) * 0.5, torch.randn(5000, 8, generator=source) * 2
    fitted = GaussianFactors.fitted(users, items)
    assert (fitted.dim, fitted.variance) == (8, pytest.approx(1.0, rel=0.02))
    sample = sampled_scores(users, items, source, 10_000)
    assert ks_distance(sample, fitted) < 1.63 / math.sqrt(10_000)
    assert math.isfinite(
        credence(torch.zeros(2), torch.zeros(2), GaussianFactors.fitted(users * 0, items), "mean1").sum()
    )


def test_ks_distance_matches_expected_values() -> None:
    uniform = EmpiricalScores(torch.arange(1000.0))
    assert ks_distance(torch.arange(0.0, 1000.0, 10), uniform) < 0.011
    assert ks_distance(torch.arange(500.0, 1000.0), uniform).item() == pytest.approx(0.5, abs=0.002)
    assert ks_distance(torch.full((7,), -1.0), uniform).item() == pytest.approx(1, abs=0.001)


def test_only_a_refitted_distribution_matches_scores_of_grown_factors() -> None:
    """E-3.22: grown factors no longer follow their initial F, and the KS distance shows this."""
    source = torch.Generator().manual_seed(2)
    users, items = torch.randn(400, 6, generator=source), torch.randn(500, 6, generator=source)
    prior, distances = torch.zeros(100), []
    for scale in (1.0, 5.0):
        sample = sampled_scores(users * scale, items, torch.Generator().manual_seed(9))
        followed = (GaussianFactors.fitted(users * scale, items), EmpiricalScores(sample))
        distances.append([ks_distance(sample, each).item() for each in (GaussianFactors(6, 1.0), *followed)])
        credences = [credence(sample[:100], prior, each, "bayes") for each in followed]
        torch.testing.assert_close(*credences, rtol=0, atol=0.03)
    assert max(distances[0] + distances[1][1:]) < 0.03
    assert distances[1][0] > 0.2
