"""Power: what the seeds at hand detect, and how many a difference needs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from orchestrator.report.power import MOST, POWER, pooled_spread, power, probability
from orchestrator.report.statistics import Summary, summary


@pytest.mark.parametrize(("seeds", "effect"), [(17, 1.0), (26, 0.8), (64, 0.5)])
def test_number_of_seeds_needed_matches_cohen_1988(seeds: int, effect: float) -> None:
    """Cohen (1988), table 2.4.1: power .8, level .05, two-sided, equal groups."""
    found = power(Summary(3, effect, 1.0), Summary(3, 0.0, 1.0), None)
    assert found is not None
    assert found.needed == seeds


@pytest.mark.parametrize(("freedom", "shift"), [(1, 12.0), (4, 3.5), (38, 2.8)])
def test_probability_agrees_with_simulation(freedom: int, shift: float) -> None:
    rng = np.random.default_rng(0)
    t = (rng.standard_normal(40_000) + shift) / np.sqrt(rng.chisquare(freedom, 40_000) / freedom)
    rejected = float(np.mean(np.abs(t) > stats.t.ppf(0.975, freedom)))
    assert probability(shift, freedom) == pytest.approx(rejected, abs=0.015)


def test_detectable_difference_is_detected_with_the_stated_power() -> None:
    a, b = Summary(4, 0.0, 1.0), Summary(6, 0.3, 2.0)
    found = power(a, b, None)
    assert found is not None
    assert found.detectable is not None
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (6_000, 4))
    y = rng.normal(found.detectable, 2, (6_000, 6))
    rejected = float(np.mean(stats.ttest_ind(x, y, axis=1, equal_var=False).pvalue < 0.05))
    assert rejected == pytest.approx(POWER, abs=0.03)


def test_detectable_difference_decreases_with_more_seeds() -> None:
    found = [power(Summary(n, 0.0, 1.0), Summary(n, 1.0, 1.0), None) for n in (2, 3, 5, 10)]
    differences = [one.detectable for one in found if one and one.detectable]
    assert differences == sorted(differences, reverse=True)
    assert len(differences) == 4


def test_spread_of_a_single_seed_is_the_pooled_spread_of_the_others() -> None:
    found = power(Summary(1, 1.0, None), Summary(3, 0.0, 1.0), pooled_spread([Summary(3, 0.0, 1.0)]))
    assert found is not None
    assert found.detectable is None
    assert found.needed == 17


def test_power_is_none_without_spread() -> None:
    assert power(Summary(1, 1.0, None), Summary(1, 0.0, None), None) is None
    assert power(summary([1.0, 1.0]), summary([2.0, 2.0]), 0.0) is None
    assert pooled_spread([Summary(1, 1.0, None)]) is None


def test_zero_difference_needs_more_than_the_maximum_of_seeds() -> None:
    found = power(Summary(3, 1.0, 1.0), Summary(3, 1.0, 1.0), None)
    assert found is not None
    assert found.needed == MOST + 1


def test_the_pooled_spread_weighs_by_degrees_of_freedom() -> None:
    assert pooled_spread([Summary(2, 0.0, 1.0), Summary(4, 0.0, 3.0), Summary(1, 0.0, None)]) == pytest.approx(7**0.5)
