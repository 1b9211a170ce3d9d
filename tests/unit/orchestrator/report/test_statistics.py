"""Mean, spread and tests against values worked out by hand and published ones."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from orchestrator.report import statistics

A, B = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0]


def test_the_spread_is_the_sample_standard_deviation() -> None:
    found = statistics.summary([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert (found.n, found.mean) == (8, 5.0)
    assert found.spread == pytest.approx((32 / 7) ** 0.5)
    assert statistics.summary([3.0]).spread is None


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e-300, 123456.789])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_equal_values_have_no_spread(value: float, n: int) -> None:
    """The sum of three times 0.1 exceeds 0.3, so the mean by division is another number."""
    found = statistics.summary([value] * n)
    assert (found.mean, found.spread) == (value, 0.0)


@pytest.mark.parametrize("test", ["welch", "permutation"])
def test_two_samples_without_spread_have_no_p_value(test: statistics.TestName) -> None:
    found = statistics.over_seeds([0.1] * 3, [0.3] * 5, test)
    assert (found.p, found.test, found.why) == (None, None, "no spread")
    assert found.value == 0.1 - 0.3


def test_welch_test_matches_the_formula() -> None:
    # By the formula: t = d / sqrt(va/na + vb/nb), Welch-Satterthwaite degrees of freedom.
    found = statistics.over_seeds(A, B, "welch")
    va, vb = np.var(A, ddof=1) / len(A), np.var(B, ddof=1) / len(B)
    d = np.mean(A) - np.mean(B)
    freedom = (va + vb) ** 2 / (va**2 / (len(A) - 1) + vb**2 / (len(B) - 1))
    drawn = np.random.default_rng(0).standard_t(freedom, 2_000_000)
    assert found.p == pytest.approx(np.mean(np.abs(drawn) >= abs(d / np.sqrt(va + vb))), abs=2e-3)
    assert found.value == pytest.approx(d)
    assert found.low is not None
    assert found.high is not None
    assert (found.low + found.high) / 2 == pytest.approx(d)
    assert found.test == "Welch's t"


def test_permutation_test_matches_full_enumeration() -> None:
    pooled, observed = np.array(A + B), np.mean(A) - np.mean(B)
    ways = [list(chosen) for chosen in combinations(range(len(pooled)), len(A))]
    differences = np.array([pooled[c].mean() - np.delete(pooled, c).mean() for c in ways])
    found = statistics.over_seeds(A, B, "permutation")
    tails = np.mean(differences >= observed - 1e-12), np.mean(differences <= observed + 1e-12)
    assert found.p == pytest.approx(2 * min(tails))
    assert found.test == "exact permutation"


def test_permutation_test_of_three_seeds_each_is_not_significant() -> None:
    assert statistics.over_seeds([1.0, 2.0, 3.0], [7.0, 8.0, 9.0], "permutation").p == pytest.approx(0.1)
    p = statistics.over_seeds([1.0, 2.0, 3.0], [7.0, 8.0, 9.0], "welch").p
    assert p is not None
    assert p < 0.01


@pytest.mark.parametrize(("a", "b", "why"), [([1.0], [1.0, 2.0], "n < 2"), ([1.0, 1.0], [2.0, 2.0, 2.0], "no spread")])
def test_samples_that_cannot_be_tested_have_a_reason(a: list[float], b: list[float], why: str) -> None:
    found = statistics.over_seeds(a, b, "welch")
    assert (found.p, found.test, found.why) == (None, None, why)


def test_the_bootstrap_is_paired_and_agrees_with_the_normal_approximation() -> None:
    rng = np.random.default_rng(1)
    hard = rng.normal(0, 10, 400)  # users differ much more than models
    a, b = hard + 0.1 + rng.normal(0, 0.5, 400), hard + rng.normal(0, 0.5, 400)
    found = statistics.over_units(a, b)
    error = np.std(a - b, ddof=1) / 20
    assert found.value == pytest.approx(np.mean(a - b))
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.1 * error)
    assert found.test == "paired bootstrap, 400 units"
    assert statistics.over_units(b, a).p == pytest.approx(found.p, abs=2e-3)


def test_interval_of_many_units_is_normal_and_close_to_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    skewed = rng.exponential(size=5_000) - 0.99
    drawn = statistics.over_units(skewed, np.zeros(5_000))
    monkeypatch.setattr(statistics, "NORMAL_FROM", 5_000)
    found = statistics.over_units(skewed, np.zeros(5_000))
    error = float(skewed.std()) / math.sqrt(5_000)
    assert found.test == "paired normal approximation, 5000 units"
    assert (found.low, found.high) == pytest.approx((found.value - 1.96 * error, found.value + 1.96 * error), rel=1e-3)
    assert drawn.test == "paired bootstrap, 5000 units"
    assert (drawn.low, drawn.high) == pytest.approx((found.low, found.high), abs=0.1 * error)
    assert drawn.p == pytest.approx(found.p, abs=0.02)


def test_bootstrap_rejects_a_true_null_at_the_nominal_rate() -> None:
    rng = np.random.default_rng(2)
    ps = [statistics.over_units(rng.normal(size=60), rng.normal(size=60)).p or 0.0 for _ in range(200)]
    assert 0.01 <= np.mean(np.array(ps) < 0.05) <= 0.10


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 5, 8, 15])
def test_few_units_reject_a_true_null_at_most_at_the_nominal_rate(n: int) -> None:
    """2,000 draws without a difference: the bound is .05 plus three standard errors of the share, .005 each.

    A bootstrap would reject .49 of the draws with 2 units, .11 with 8 and .08 with 15. The least p of 2^n signs is
    2 / 2^n.
    """
    rng = np.random.default_rng(n)
    ps = np.array([statistics.over_units(rng.normal(size=n), rng.normal(size=n)).p or 0.0 for _ in range(2000)])
    assert np.mean(ps <= 0.05) <= 0.05 + 3 * 0.005
    if n < 14:
        assert np.min(ps) == pytest.approx(2 / 2**n)
    if n >= 8:  # there are enough signs to reject about as often as allowed
        assert np.mean(ps <= 0.05) >= 0.05 - 3 * 0.005


def test_few_units_are_tested_by_exact_sign_flips() -> None:
    differences = np.array([0.4, 0.1, -0.2, 0.3, 0.25, 0.6, 0.05])
    signs = np.array(list(product((-1, 1), repeat=7)))
    means = (signs * differences).mean(1)
    found = statistics.over_units(differences, np.zeros(7))
    assert found.p == pytest.approx(np.mean(np.abs(means) >= abs(differences.mean()) - 1e-12))
    assert found.test == "paired sign flips, exact, 7 units"


def test_interval_of_few_units_matches_the_rejections_of_the_test() -> None:
    differences = np.array([0.4, 0.1, -0.2, 0.3, 0.25, 0.6, 0.05, 0.33])
    found = statistics.over_units(differences, np.zeros(8))
    assert found.low is not None
    assert found.high is not None
    for inside, outside in ((found.low + 1e-6, found.low - 1e-6), (found.high - 1e-6, found.high + 1e-6)):
        assert (statistics.over_units(differences, np.full(8, inside)).p or 0) > 0.05
        assert (statistics.over_units(differences, np.full(8, outside)).p or 1) <= 0.05
    none = statistics.over_units(differences[:5], np.zeros(5))  # 5 units have no interval of 95%
    assert (none.low, none.high) == (None, None)
    assert none.p is not None


def test_sums_that_are_zero_up_to_rounding_count_as_ties() -> None:
    """0.1 + 0.2 - 0.3 is 5e-17 in floating point; the three values flipped or not must count as equal sums."""
    assert statistics.over_units([0.1, 0.2, -0.3], [0.0, 0.0, 0.0]).p == 1.0


@pytest.mark.parametrize(("n", "test"), [(13, "sign flips, exact"), (49, "sign flips, 10000 drawn"), (50, "bootstrap")])
def test_number_of_units_decides_between_sign_flips_and_bootstrap(n: int, test: str) -> None:
    assert (
        statistics.over_units(np.random.default_rng(0).normal(size=n), np.zeros(n)).test == f"paired {test}, {n} units"
    )


def crossed(rng: np.random.Generator, seeds: int, units: int, *, of_seed: float, of_unit: float, rest: float) -> Any:
    """Values (seeds, units) of a method: a shift of each seed, one of each unit, and one of each pair of them."""
    sides = rng.normal(0, of_seed, (seeds, 1)), rng.normal(0, of_unit, (1, units))
    return sides[0] + sides[1] + rng.normal(0, rest, (seeds, units))


@pytest.mark.slow
@pytest.mark.parametrize("of_seed", [0.0, 0.05, 0.5])
def test_over_units_and_seeds_rejects_a_true_null_at_the_nominal_rate(of_seed: float) -> None:
    """A test over units alone rejects it in a third of the cases if a seed's shift is as large as the units' noise."""
    rng = np.random.default_rng(4)
    sides = [[crossed(rng, 5, 300, of_seed=of_seed, of_unit=0.5, rest=0.5) for _ in "ab"] for _ in range(1000)]
    ps = np.array([statistics.over_units_and_seeds(a, b).p for a, b in sides])
    assert np.mean(ps <= 0.05) <= 0.05 + 3 * 0.007
    if of_seed == 0.05:
        alone = np.array([statistics.over_units(a.mean(0), b.mean(0)).p for a, b in sides[:200]])
        assert np.mean(alone <= 0.05) > 0.15


def test_over_units_and_seeds_without_noise_of_seeds_is_the_paired_t_of_units() -> None:
    rng = np.random.default_rng(5)
    a, b = crossed(rng, 3, 400, of_seed=0, of_unit=1, rest=0.1), crossed(rng, 3, 400, of_seed=0, of_unit=1, rest=0.1)
    a -= a.mean(1, keepdims=True) - 0.1  # every seed has the same mean
    b -= b.mean(1, keepdims=True)
    found = statistics.over_units_and_seeds(a, b)
    error = (a - b).mean(0).std(ddof=1) / 20
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1 - 1.9659 * error, 0.1 + 1.9659 * error), rel=1e-4)
    assert found.test == "paired t over 3 seeds and 400 units"
    bootstrap = statistics.over_units(a.mean(0), b.mean(0))
    assert found.p == pytest.approx(bootstrap.p, abs=0.02)
    assert statistics.over_units_and_seeds(a, a).why == "every unit is equal"
    a[0, 1:] = np.nan
    assert statistics.over_units_and_seeds(a, b).why == "fewer than 2 common units"


def test_sample_without_spread_is_compared_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    """One sample is a method without training, whose values are equal; the other one is trained."""
    found = statistics.over_seeds([0.6573] * 5, [0.6567, 0.6571, 0.6563, 0.6566, 0.6568], "welch")
    assert found.p is not None
    assert found.p < 0.05
    assert not recwarn.list


def test_empty_or_equal_units_are_reported_with_a_reason() -> None:
    assert statistics.over_units([1.0, np.nan, 2.0], [0.0, 1.0, np.nan]).why == "fewer than 2 common units"
    assert statistics.over_units([1.0, 2.0], [1.0, 2.0]).why == "every unit is equal"


@pytest.mark.parametrize(
    ("p", "text"), [(0.034567, "0.035"), (2e-10, "2e-10"), (7.7e-225, "< 1e-10"), (0.0, "< 1e-10")]
)
def test_p_values_are_rounded_and_bounded_below_in_text(p: float, text: str) -> None:
    assert statistics.p_text(p) == text
    assert statistics.p_text(p, "= ") == (text if "<" in text else f"= {text}")


def test_holm_correction_matches_hand_computed_values() -> None:
    # Holm (1979): the smallest p times k, the next times k - 1, and so on, without a decrease.
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []
