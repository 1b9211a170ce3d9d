"""Thresholds with a promise, compared with slow references and tested on populations with known risk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from workloads.abstention.drift import drift
from workloads.abstention.guarantees import (
    Grid,
    binomial_cdf,
    conformal_risk_control,
    divergence,
    fewest,
    learn_then_test,
    needed,
    p_values,
)

RISK = 0.1
DELTA = 0.1


def draw(random: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores u uniform on [0, 1], with a probability of failure of max(0, .6 - .9 u)."""
    scores = random.random(n)
    return scores, (random.random(n) < 0.6 - 0.9 * scores).astype(np.float64)


def true_risk(threshold: float) -> float:
    """The mean of the probability of failure over the scores from ``threshold`` on."""
    t = min(max(0.0, threshold), 2 / 3)
    return 0.45 * (2 / 3 - t) ** 2 / (1 - t)


def test_binomial_cdf_and_fewest_match_scipy() -> None:
    failures = np.array([0, 0, 3, 7, 40, 900, 5])
    trials = np.array([0, 9, 10, 7, 400, 9000, 1])
    expected = stats.binom.cdf(failures, trials, 0.1)
    np.testing.assert_allclose(binomial_cdf(failures, trials, 0.1), expected, rtol=1e-9)
    np.testing.assert_allclose(stats.binom.cdf(0, fewest(RISK, DELTA), RISK), 0.1, atol=0.02)
    assert stats.binom.cdf(0, fewest(RISK, DELTA) - 1, RISK) > DELTA >= stats.binom.cdf(0, fewest(RISK, DELTA), RISK)


@pytest.mark.parametrize("n", [1, 8, 37])
def test_p_values_of_a_true_hypothesis_are_rarely_small(n: int) -> None:
    """The probability is exact, over all outcomes of losses in {0, 1/2, 1} whose mean is the risk."""
    failures = np.arange(n + 1)
    single = [p_values(np.ones(n), (np.arange(n) < k).astype(float), np.zeros(1), RISK, True)[0] for k in failures]
    weights = stats.binom.pmf(failures, n, RISK)
    for level in (0.01, 0.05, 0.1, 0.3):
        assert weights[np.array(single) <= level].sum() <= level
    halves = np.arange(2 * n + 1)  # the sum of 2n losses of 0 or 1/2, two per query, has a mean of n RISK
    bounded = [p_values(np.ones(n), np.full(n, k / 2 / n), np.zeros(1), RISK, False)[0] for k in halves]
    for level in (0.01, 0.05, 0.1, 0.3):
        assert stats.binom.pmf(halves, 2 * n, RISK)[np.array(bounded) <= level].sum() <= level


@given(seed=st.integers(0, 2**20), n=st.integers(1, 60), whole=st.booleans())
@settings(max_examples=25, deadline=None)
def test_p_values_and_chosen_threshold_match_a_reference_of_loops(seed: int, n: int, whole: bool) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 12, n) / 10.0
    losses = random.random(n) * 0.4 if not whole else (random.random(n) < 0.1).astype(float)
    grid = Grid.of(random.integers(0, 12, 40) / 10.0, (random.random(40) < 0.1).astype(float), points=8)
    assert (np.diff(grid.thresholds) < 0).all()
    assert (np.diff(grid.shares) > 0).all()
    expected = []
    for threshold in grid.thresholds:
        own = losses[scores >= threshold]
        if whole:
            p = stats.binom.cdf(own.sum(), len(own), 0.3)
        elif len(own):
            kl = float(divergence(np.array([min(own.mean(), 0.3)]), 0.3)[0])
            p = min(1, np.exp(-len(own) * kl), np.e * stats.binom.cdf(np.ceil(own.sum() - 1e-9), len(own), 0.3))
        else:
            p = 1.0
        expected.append(p)
    np.testing.assert_allclose(p_values(scores, losses, grid.thresholds, 0.3, whole), expected, rtol=1e-7)
    best = None
    for place in range(grid.start(n, 0.3, 0.2), len(expected)):
        if expected[place] > 0.2:
            break
        best = float(grid.thresholds[place])
    chosen = learn_then_test(scores, losses, grid, 0.3, 0.2, whole)
    assert (chosen and chosen.threshold) == best
    if chosen:
        assert chosen.coverage == (scores >= best).mean()


@pytest.mark.parametrize("trusted", [True, False])
def test_the_risk_is_exceeded_in_at_most_a_share_delta_of_calibrations(trusted: bool) -> None:
    """This holds with and without validation losses. A choice by empirical risk exceeds RISK in about half of them."""
    random = np.random.default_rng(3)
    above = usual = answered = 0
    for _ in range(200):
        scores, losses = draw(random, 150)
        validation = draw(random, 100)
        chosen = learn_then_test(scores, losses, Grid.of(*validation[: 1 + trusted], points=20), RISK, DELTA)
        above += chosen is not None and true_risk(chosen.threshold) > RISK
        answered += chosen is not None
        order = np.argsort(-scores)
        risks = losses[order].cumsum() / np.arange(1, 151)
        usual += true_risk(scores[order][np.flatnonzero(risks <= RISK).max(initial=0)]) > RISK
    assert stats.binomtest(above, 200).proportion_ci(0.999).low <= DELTA
    assert above > 0  # the method is not overly conservative
    assert answered > 100
    assert usual > 80


def test_no_threshold_is_chosen_without_successes_or_validation_scores() -> None:
    random = np.random.default_rng(0)
    scores = random.random(500)
    grid = Grid.of(random.random(100), np.ones(100))
    assert learn_then_test(scores, np.ones(500), grid, RISK, DELTA) is None
    assert needed(scores, np.ones(500), grid, RISK, DELTA) is None
    assert learn_then_test(scores, np.zeros(500), Grid.of(np.zeros(0)), RISK, DELTA) is None


def test_threshold_is_not_below_the_least_validation_score() -> None:
    chosen = learn_then_test(np.ones(50), np.zeros(50), Grid.of(np.array([0.5, 0.7])), RISK, DELTA)
    assert chosen is not None
    assert chosen.threshold == 0.5


def test_needed_number_of_queries_suffices_in_most_draws() -> None:
    """The stated number of queries suffices in most draws; a quarter of it suffices in few."""
    random = np.random.default_rng(1)
    grid = Grid.of(*draw(random, 400))
    few = draw(random, 60)
    assert learn_then_test(*few, grid, 0.02, DELTA) is None
    count = needed(*draw(random, 400), grid, 0.02, DELTA)
    assert count is not None
    enough, quarter = (
        sum(learn_then_test(*draw(random, size), grid, 0.02, DELTA) is not None for _ in range(40))
        for size in (count, count // 4)
    )
    assert quarter < 10
    assert enough > 20


@given(seed=st.integers(0, 2**20), n=st.integers(1, 40), risk=st.sampled_from([0.05, 0.1, 0.3]), ties=st.booleans())
@settings(max_examples=25, deadline=None)
def test_conformal_risk_control_holds_over_all_orders(seed: int, n: int, risk: float, ties: bool) -> None:
    """Each of n + 1 fixed queries is the new one once; the mean loss over these cases is at most the risk."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, 6, n + 1).astype(float) if ties else random.random(n + 1)
    losses = random.random(n + 1)
    total = 0.0
    for new in range(n + 1):
        rest = np.delete(np.arange(n + 1), new)
        chosen = conformal_risk_control(scores[rest], losses[rest], risk)
        assert (chosen is None) == (1 / (n + 1) > risk)
        if chosen is not None:
            assert chosen.answered == (scores[rest] >= chosen.threshold).sum()
            total += losses[new] * (scores[new] >= chosen.threshold)
    assert total / (n + 1) <= risk + 1e-12


def test_conformal_risk_control_answers_the_largest_permitted_number() -> None:
    scores, losses = np.arange(10.0), np.array([1, 1, 0, 1, 0, 0, 0, 0, 0, 0.0])
    chosen = conformal_risk_control(scores, losses, 0.2)  # (1 + 1) / 11 is below, (2 + 1) / 11 is not
    assert chosen is not None
    assert chosen.answered == 8
    every = conformal_risk_control(scores, 0 * losses, 0.2)
    assert every is not None
    assert every.answered == 10


def test_drift_has_few_false_alarms_and_detects_a_shift() -> None:
    random = np.random.default_rng(5)
    same = [drift(random.integers(0, 5, 40), random.integers(0, 5, 25), seed) for seed in range(40)]
    alarms = sum(one.p <= 0.1 for one in same if one)
    assert stats.binomtest(alarms, 40).proportion_ci(0.999).low <= 0.1
    assert len({one.p for one in same if one}) > 15
    shifted = drift(random.normal(0, 1, 150), random.normal(0.8, 1, 100))
    assert shifted is not None
    assert shifted.p == 1 / 400
    assert drift(np.zeros(0), np.ones(3)) is None
    first, second = random.random(30), random.random(47)
    one = drift(first, second)
    assert one is not None
    exact = stats.ks_2samp(first, second, method="exact")
    assert one.distance == pytest.approx(exact.statistic)
    assert one.p == pytest.approx(exact.pvalue, abs=0.08)
