"""The thesis' theorems on simulated data with known truth. Each tolerance is a number of standard errors.

Each claim is checked together with one that does not hold (no correction, another rule, a wrong parameter) and must
exceed the same tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from workloads.losses.contrastive import alpha_from_auc, bcl_loss, bcl_weights, bcl_weights_at, infonce_loss
from workloads.losses.pairwise import bpr_loss, debiased_probability, dpl_loss
from workloads.recommender.credence import GaussianFactors, LogProbabilities, Mode, credence
from workloads.recommender.quality import information, roc_auc
from workloads.sampling.bayesian import risk, unbias

SURE = 4.5
"""Standard errors; seeds are fixed, and one of 150,000 would deviate as far."""


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _uniform(source: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=source, dtype=torch.float64)


def _errors_of(sample: torch.Tensor, truth: float) -> float:
    """The distance of a sample's mean from the truth, in standard errors."""
    return ((sample.mean() - truth).abs() / (sample.std() / math.sqrt(sample.numel()))).item()


def _calibration(probability: torch.Tensor, happened: torch.Tensor, bins: int = 20) -> float:
    """Σ (observed - expected)² / variance over bins of equal size, chi-square with ``bins`` degrees of freedom."""
    order = probability.flatten().argsort()
    statistic = 0.0
    for p, h in zip(probability.flatten()[order].chunk(bins), happened.flatten()[order].double().chunk(bins)):
        statistic += ((h - p).sum() ** 2 / (p * (1 - p)).sum()).item()
    return statistic


CALIBRATED = 60.0
"""A chi-square of 20 degrees of freedom passes it once in 100,000."""


# Chapter 5. Cosines of two classes; they are discrete, so that every expectation is a sum.
VALUES = torch.tensor([-0.8, -0.3, 0.1, 0.5, 0.9], dtype=torch.float64)
POSITIVE = torch.tensor([0.05, 0.1, 0.2, 0.3, 0.35], dtype=torch.float64)
NEGATIVE = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05], dtype=torch.float64)
TAU = 0.3


def _cosines(source: torch.Generator, weights: torch.Tensor, *shape: int) -> torch.Tensor:
    return VALUES[torch.multinomial(weights, math.prod(shape), True, generator=source)].view(shape)


def _pairs(source: torch.Generator, n: int, m: int, anchors: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    unlabelled = TAU * POSITIVE + (1 - TAU) * NEGATIVE
    return (
        _cosines(source, POSITIVE, anchors),
        _cosines(source, unlabelled, anchors, n),
        _cosines(source, POSITIVE, anchors, m),
    )


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 2), (2, 8)])
def test_lemma_5_1_dpl_estimates_without_bias(n: int, m: int) -> None:
    """E P̂ = P(a positive above a true negative) for all M and N."""
    truth = (POSITIVE @ torch.sigmoid(VALUES[:, None] - VALUES[None, :]) @ NEGATIVE).item()
    positive, negatives, extra = _pairs(_generator(n), n, m, 40_000)
    assert _errors_of(debiased_probability(positive, negatives, extra, tau=TAU), truth) < SURE
    uncorrected = debiased_probability(positive, negatives, extra[:, :0], tau=TAU)
    assert _errors_of(uncorrected, truth) > 2 * SURE


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 16), (16, 4), (64, 64)])
def test_lemma_5_3_the_error_falls_with_n_and_m(n: int, m: int) -> None:
    """The variance of P̂ is V_un / (N τ-²) + V_p (τ+/τ-)² / M: a larger N or M alone leaves the other term."""
    anchors = 20_000
    above = torch.sigmoid(0.5 - VALUES)  # of the anchor 0.5
    spread = [
        ((weights @ above.square()) - (weights @ above) ** 2).item()
        for weights in (TAU * POSITIVE + (1 - TAU) * NEGATIVE, POSITIVE)
    ]
    expected = spread[0] / n / (1 - TAU) ** 2 + spread[1] / m * (TAU / (1 - TAU)) ** 2
    source = _generator(n + 100 * m)
    _, negatives, extra = _pairs(source, n, m, anchors)
    anchor = torch.full((anchors,), 0.5, dtype=torch.float64)
    error = debiased_probability(anchor, negatives, extra, tau=TAU) - (NEGATIVE @ above)
    assert _errors_of(error.square(), expected) < SURE
    assert _errors_of(error.square(), expected * 1.5) > SURE
    # The lemma's bound on the error of the loss: e² √(2π) (1/√N + τ+/√M).
    loss = dpl_loss(anchor, negatives, extra, tau=TAU, floor=1 / (1 + math.e**2))
    supervised = -(NEGATIVE @ above).log()
    bound = math.e**2 * math.sqrt(2 * math.pi) * (1 / math.sqrt(n) + TAU / math.sqrt(m))
    assert (loss - supervised).abs().mean() < bound


def test_lemma_5_2_dpl_loss_converges_to_the_supervised_loss() -> None:
    """The error of the DPL loss halves as M and N grow fourfold; BPR on unlabelled samples keeps its bias."""
    above = torch.sigmoid(VALUES[:, None] - VALUES[None, :])
    supervised = -(POSITIVE @ (above @ NEGATIVE).log()).item()
    errors = []
    for k in (16, 64, 256):
        positive, negatives, extra = _pairs(_generator(k), k, k, 3000)
        own = -((above @ NEGATIVE).log()[torch.searchsorted(VALUES, positive)])
        errors.append((dpl_loss(positive, negatives, extra, tau=TAU) - own).square().mean().sqrt().item())
    assert [later / earlier for earlier, later in pairwise(errors)] == pytest.approx([0.5, 0.5], rel=0.1)
    positive, negatives, extra = _pairs(_generator(3), 256, 256, 20_000)
    anchors = dpl_loss(positive, negatives, extra, tau=TAU)
    assert anchors.mean().item() == pytest.approx(supervised, abs=SURE * anchors.std().item() / math.sqrt(20_000))
    biased = bpr_loss(positive, negatives[:, 0])
    assert _errors_of(biased, supervised) > 2 * SURE


# Chapter 6. A score's place Φ is the smaller or larger of two uniform draws: (6.14) and (6.15).
def _places(source: torch.Generator, alpha: float, tau: float, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Φ of unlabelled samples, and whether each sample is a false negative."""
    pair = _uniform(source, 2, *shape)
    false = _uniform(source, *shape) < tau
    apart = _uniform(source, *shape) < alpha
    return torch.where(false == apart, pair.amax(0), pair.amin(0)), false


def _unlabelled(phi: torch.Tensor, alpha: float, tau: float) -> torch.Tensor:
    """Φ_UN(Φ), thesis (6.28)."""
    a = (1 - 2 * alpha) * (1 - 2 * tau)
    return a * phi**2 + (1 - a) * phi


@pytest.mark.parametrize(("alpha", "tau"), [(0.9, 0.1), (0.7, 0.4), (0.95, 0.02), (0.6, 0.7)])
def test_theorem_6_1_bcl_weight_is_the_posterior_of_a_true_negative(alpha: float, tau: float) -> None:
    """At β = .5, ω τ- = P(true negative | score), so the observed frequency of true negatives matches it."""
    phi, false = _places(_generator(int(1000 * alpha + tau)), alpha, tau, 200_000)
    weights = bcl_weights_at(_unlabelled(phi, alpha, tau), alpha=alpha, beta=0.5, tau=tau)
    assert _calibration(weights * (1 - tau), ~false) < CALIBRATED
    other = alpha - 0.1 if alpha > 0.8 else alpha + 0.1
    weights = bcl_weights_at(_unlabelled(phi, other, tau), alpha=other, beta=0.5, tau=tau)
    assert _calibration(weights * (1 - tau), ~false) > CALIBRATED


def test_theorem_6_1_holds_with_the_empirical_distribution() -> None:
    """Places are ranks among the anchor's own 2,000 samples, for any distribution of the scores."""
    phi, false = _places(_generator(1), 0.85, 0.2, 100, 2000)
    for scores in (phi, torch.special.ndtri(phi), (3 * phi).exp()):
        weights = bcl_weights(scores, alpha=0.85, beta=0.5, tau=0.2, ties="mid")
        assert _calibration(weights * 0.8, ~false) < CALIBRATED


@pytest.mark.parametrize(("alpha", "beta", "tau"), [(0.9, 0.5, 0.1), (0.8, 0.8, 0.3)])
def test_importance_weights_give_the_mean_over_the_target(alpha: float, beta: float, tau: float) -> None:
    """(6.39)-(6.41): E_un ω e^x is the mean over the target, true negatives with a raised hard part (6.22)."""
    phi, _ = _places(_generator(2), alpha, tau, 100_000)
    weights = bcl_weights_at(_unlabelled(phi, alpha, tau), alpha=alpha, beta=beta, tau=tau)
    assert _errors_of(weights, 1.0) < SURE
    # With x = Φ: ∫ e^u 2(1-u) du = 2(e - 2) of the smaller, ∫ e^u 2u du = 2 of the larger draw.
    easy, hard = (1 - beta) * alpha, beta * (1 - alpha)
    target = (easy * 2 * (math.e - 2) + hard * 2) / (easy + hard)
    assert _errors_of(weights * phi.exp(), target) < SURE
    assert _errors_of(phi.exp(), target) > 2 * SURE


def test_theorem_6_2_bcl_loss_converges_to_the_supervised_loss() -> None:
    """The error of the estimate halves as N grows fourfold.

    The BCL loss equals InfoNCE over true negatives within the tolerance, and InfoNCE over all samples does not.
    """
    alpha, tau, anchors = 0.9, 0.2, 800
    truth = alpha * 2 * (math.e - 2) + (1 - alpha) * 2
    errors = []
    for n in (64, 256, 1024):
        phi, _ = _places(_generator(n), alpha, tau, anchors, n)
        estimates = (bcl_weights(phi, alpha=alpha, beta=0.5, tau=tau) * phi.exp()).mean(1)
        errors.append((estimates - truth).square().mean().sqrt().item())
    assert [later / earlier for earlier, later in pairwise(errors)] == pytest.approx([0.5, 0.5], rel=0.15)

    source = _generator(7)
    phi, _ = _places(source, alpha, tau, anchors, 1024)
    true, _ = _places(source, alpha, 0.0, anchors, 1024)
    positive = torch.full((anchors,), 0.9, dtype=torch.float64)
    supervised = infonce_loss(positive, true)
    assert _errors_of(bcl_loss(positive, phi, alpha=alpha, beta=0.5, tau=tau, ties="mid") - supervised, 0) < SURE
    assert _errors_of(infonce_loss(positive, phi) - supervised, 0) > 2 * SURE


@pytest.mark.parametrize("alpha", [0.5, 0.65, 0.8, 1.0])
def test_alpha_is_recovered_from_the_auc_but_differs_from_it(alpha: float) -> None:
    """E-6.21: independent draws of the two classes have the AUC 1/2 + (2α - 1) / 3."""
    n = 20_000
    source = _generator(int(100 * alpha))
    (true, _), (false, _) = (_places(source, alpha, tau, n) for tau in (0.0, 1.0))
    labels = torch.cat([torch.zeros(n), torch.ones(n)]).bool()
    auc = roc_auc(torch.cat([true, false]), labels).item()
    error = math.sqrt(1 / (6 * n))  # at most, for classes of n each
    assert abs(auc - (0.5 + (2 * alpha - 1) / 3)) < SURE * error
    assert abs(alpha_from_auc(auc) - alpha) < SURE * 1.5 * error
    assert alpha == 0.5 or abs(auc - alpha) > SURE * error


# Chapter 4.
def _candidates(source: torch.Generator, users: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """F of candidates, their prior and whether each is a false negative: (4.7), (4.8) and P_fn."""
    prior = 0.6 * _uniform(source, users, n)
    false = _uniform(source, users, n) < prior
    pair = _uniform(source, 2, users, n)
    return torch.where(false, pair.amax(0), pair.amin(0)), prior, false


def test_unbias_is_the_posterior_of_a_true_negative() -> None:
    """(4.14): unbias is the share of true negatives among candidates with equal unbias."""
    place, prior, false = _candidates(_generator(11), 100_000, 2)
    assert _calibration(unbias(place, prior), ~false) < CALIBRATED
    assert _calibration(unbias(place, prior * 0.8), ~false) > CALIBRATED


@pytest.mark.parametrize("lam", [0.5, 5.0])
def test_theorem_4_1_bayesian_sampling_rule_has_the_least_risk(lam: float) -> None:
    """The rule of (4.26) has the least mean cost of a sample by its label (4.24), compared with five other rules."""
    users, n = 40_000, 5
    place, prior, false = _candidates(_generator(12), users, n)
    scores = torch.special.ndtri(place)
    info = information(torch.full_like(scores, 0.5), scores)
    loss = torch.where(false, info, -lam * info)
    negative = unbias(place, prior)
    conditional = risk(info, negative, lam)

    def cost(chosen: torch.Tensor) -> torch.Tensor:
        return loss.gather(1, chosen[:, None]).squeeze(1)

    best = cost(conditional.argmin(1))
    assert _errors_of(best, conditional.amin(1).mean().item()) < SURE  # the cost equals the expected risk
    others = {
        "RNS": torch.zeros(users, dtype=torch.int64),
        "DNS": scores.argmax(1),
        "PNS": prior.argmax(1),
        "posterior": negative.argmax(1),
        "λ wrong": risk(info, negative, 50 * lam if lam < 1 else 0.0).argmin(1),
    }
    for name, chosen in others.items():
        saved = cost(chosen) - best
        assert saved.mean() > SURE * saved.std() / math.sqrt(users), name
    # With more candidates the cost falls; a single candidate is RNS, all unobserved items would be the optimum.
    by_size = [cost(conditional[:, :size].argmin(1)) for size in (1, 3, 5)]
    for fewer, more in pairwise(by_size):
        assert (fewer - more).mean() > SURE * (fewer - more).std() / math.sqrt(users)


# Chapter 3.
def _log_likelihood(place: LogProbabilities, prior: torch.Tensor) -> torch.Tensor:
    """Σ ln[p F(x) + (1 - p)(1 - F(x))]: credible interactions score high, others low; the two are not labelled."""
    odds = torch.nn.functional.logsigmoid
    return torch.logaddexp(odds(prior) + place.log_below, odds(-prior) + place.log_above).sum()


def _em(modes: Sequence[Mode]) -> list[float]:
    """Likelihoods after rounds of an E-step in the given mode and an M-step that raises Q with F and 1 - F."""
    source = _generator(21)
    tables = [torch.randn(k, 4, generator=source, dtype=torch.float64, requires_grad=True) for k in (30, 40)]
    pairs = torch.stack([torch.randint(k, (400,), generator=source) for k in (30, 40)])
    prior = torch.randn(400, generator=source, dtype=torch.float64)
    distribution = GaussianFactors(4, 1.0)

    def scores() -> torch.Tensor:
        return (tables[0][pairs[0]] * tables[1][pairs[1]]).sum(1)

    likelihoods = [_log_likelihood(distribution.log_probabilities(scores()), prior).item()]
    for mode in modes:
        weights = credence(scores(), prior, distribution, mode)
        for _ in range(10):
            place = distribution.log_probabilities(scores())
            objective = (weights * place.log_below + (1 - weights) * place.log_above).sum()
            gradients = torch.autograd.grad(objective, tables)
            with torch.no_grad():
                for table, gradient in zip(tables, gradients):
                    table += 0.01 * gradient
        likelihoods.append(_log_likelihood(distribution.log_probabilities(scores()), prior).item())
    return likelihoods


def test_em_raises_the_likelihood_with_the_bayes_credence() -> None:
    """Lemma 3.2 where it holds (E-3.25).

    Every round raises the likelihood if the credence is the posterior of the fitted model, mode ``bayes``. With a
    density in place of the probability, mode ``thesis``, the next round can lower it.
    """
    climbing: list[Mode] = ["bayes"] * 30
    likelihoods = _em(climbing)
    assert all(later > earlier for earlier, later in pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 30
    *_, before, after = _em([*climbing, "thesis"])
    assert after < before


def test_mean1_credence_scales_the_m_step_gradient_by_a_constant() -> None:
    """(3.40): ĉ of mode ``mean1`` is that of ``thesis`` times a constant, so (3.29) has the same maximiser."""
    source = _generator(22)
    w, h, other = (torch.randn(300, 6, generator=source, dtype=torch.float64, requires_grad=True) for _ in range(3))
    scores, prior = (w * h).sum(1), torch.randn(300, generator=source, dtype=torch.float64)
    gradients = []
    for mode in ("thesis", "mean1"):
        weights = credence(scores, prior, GaussianFactors(6, 0.6), mode)
        penalty = 0.01 * (w.square() + h.square() + other.square()).sum(1)
        q = (weights * (-bpr_loss(scores, (w * other).sum(1)) - penalty)).sum()
        gradients.append(torch.cat(torch.autograd.grad(q, (w, h, other), retain_graph=True)))
    constant = gradients[1].norm() / gradients[0].norm()
    torch.testing.assert_close(gradients[1], constant * gradients[0])
