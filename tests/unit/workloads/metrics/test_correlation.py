"""Correlations against SciPy, the reference values and resampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workloads.metrics.correlation import average_ranks, constant, influences

TIED = [-1.0, -1.0, -1.0, 1.0, -0.0, -1.0, 1.0, -0.0, -0.0, -2.0, 0.0, -1.0, 0.0, -1.0, -1.0]
OTHER = [-0.0, 1.0, 1.0, -1.0, 1.0, 1.0, 2.0, -1.0, 1.0, 1.0, -0.0, -1.0, -1.0, -0.0, -0.0]
RANKS = [5.0, 5.0, 5.0, 14.5, 11.0, 5.0, 14.5, 11.0, 11.0, 1.0, 11.0, 5.0, 11.0, 5.0, 5.0]


def columns(*values: list[float]) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.float64) for column in values]


def pearson(x: torch.Tensor, y: torch.Tensor) -> float:
    return influences(x, y).mean().item()


def spearman(x: torch.Tensor, y: torch.Tensor) -> float:
    return pearson(average_ranks(x), average_ranks(y))


def test_ties_share_the_average_of_their_ranks() -> None:
    (tied,) = columns(TIED)
    assert average_ranks(tied).tolist() == RANKS


def test_spearman_and_pearson_match_reference_values() -> None:
    assert spearman(*columns(TIED, OTHER)) == pytest.approx(-0.13262397656669492, abs=1e-12)
    x = [0.6033, 0.1427, 0.5636, -1.6759, -0.3307, -0.148, -0.4232, -0.9787, -1.7663]
    y = [0.6277, 1.1007, 0.6183, 1.5891, 0.5098, -1.1888, 0.1688, -0.0365, 0.0974]
    assert pearson(*columns(x, y)) == pytest.approx(-0.07781747931327078, abs=1e-12)


@settings(deadline=None, max_examples=80)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 60), steps=st.sampled_from([2, 5, 1000]))
def test_pearson_and_spearman_match_scipy(seed: int, n: int, steps: int) -> None:
    x, y = np.random.default_rng(seed).integers(0, steps, (2, n)) / 7
    if len(set(x)) == 1 or len(set(y)) == 1:
        return
    first, second = torch.from_numpy(x), torch.from_numpy(y)
    assert pearson(first, second) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(first, second) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [0.3]])
def test_a_constant_has_correlation_zero(values: list[float]) -> None:
    """E-S3. In floating point the mean of three values 0.1 is not 0.1."""
    x, y = torch.tensor(values), torch.arange(len(values)).float()
    assert constant(x)
    assert pearson(x, y) == spearman(y, x) == 0.0


def test_float32_predictions_are_ranked_exactly() -> None:
    x = torch.tensor([1.0, 1.0 + 2**-23, 1.0])
    assert average_ranks(x).tolist() == [1.5, 3.0, 1.5]


@pytest.mark.parametrize("values", [[math.nan, math.nan, math.nan], [0.1, math.nan, 0.3]])
def test_spearman_of_nan_predictions_is_nan(values: list[float]) -> None:
    (x,) = columns(values)
    assert math.isnan(spearman(x, torch.arange(3.0)))


def test_standard_error_of_influences_matches_the_spread_of_r() -> None:
    """The standard error of the influences is that of r over samples: (1 - r²) / √n for normal data."""
    generator, rho, n = np.random.default_rng(0), 0.8, 400
    spread, found = [], []
    for _ in range(400):
        x = generator.standard_normal(n)
        y = rho * x + np.sqrt(1 - rho**2) * generator.standard_normal(n)
        values = influences(torch.from_numpy(x), torch.from_numpy(y))
        found.append(values.mean().item())
        spread.append(values.std().item() / n**0.5)
    assert np.mean(spread) == pytest.approx(np.std(found), rel=0.1)
    assert np.mean(spread) == pytest.approx((1 - rho**2) / n**0.5, rel=0.05)
