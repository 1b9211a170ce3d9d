"""Quality of negatives and of credence, compared with counts by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.recommender.quality import (
    SamplingQuality,
    information,
    roc_auc,
    roc_curve,
    wrong_share,
)


def test_sampling_quality_matches_the_formulas_of_tnr_and_inf() -> None:
    positive, negative = torch.tensor([1.0, 0.0, 2.0, -1.0]), torch.tensor([0.0, 1.0, 2.0, 3.0])
    false = torch.tensor([False, True, False, False])
    info = [1 - 1 / (1 + math.exp(-(p - n))) for p, n in zip(positive.tolist(), negative.tolist())]
    assert information(positive, negative).tolist() == pytest.approx(info)
    quality = SamplingQuality()
    for part in (slice(0, 1), slice(1, 4)):  # batches add up
        quality.add(positive[part], negative[part], false[part])
    expected = {"tnr": 3 / 4, "inf": (info[0] - info[1] + info[2] + info[3]) / 4}
    assert SamplingQuality.measures(quality.sums) == pytest.approx(expected)
    # Two workers with equal sums have the same measures together.
    assert SamplingQuality.measures(quality.sums * 2) == pytest.approx(expected)


def test_sampling_quality_without_samples_has_tnr_one_and_inf_zero() -> None:
    assert SamplingQuality.measures(SamplingQuality().sums) == {"tnr": 1, "inf": 0}


def test_information_does_not_overflow() -> None:
    assert information(torch.tensor([1e4, -1e4]), torch.zeros(2)).tolist() == [0, 1]


def test_wrong_share_is_weighted_and_is_nan_without_samples() -> None:
    wrong = torch.tensor([True, False, False, True])
    assert wrong_share(wrong).item() == 0.5
    assert wrong_share(wrong, torch.tensor([0.5, 1.0, 2.0, 0.5])).item() == 0.25
    assert wrong_share(wrong, torch.tensor([0.0, 1.0, 2.0, 0.0])).item() == 0
    assert wrong_share(wrong[:0]).isnan()


@given(n=st.integers(2, 12), levels=st.integers(1, 5), seed=st.integers(0, 2**20))
@settings(max_examples=80, deadline=None)
def test_auc_is_the_share_of_pairs_in_order_and_the_area_of_the_curve(n: int, levels: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (n,), generator=source).float()  # with many ties
    labels = torch.rand(n, generator=source) < 0.5
    labels[0], labels[1] = True, False
    difference = scores[labels][:, None] - scores[~labels][None, :]
    expected = ((difference > 0).double() + (difference == 0).double() / 2).mean().item()
    assert roc_auc(scores, labels).item() == pytest.approx(expected, abs=1e-12)
    false, true = roc_curve(scores, labels)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert len(false) == len(scores.unique()) + 1
    assert torch.trapezoid(true, false).item() == pytest.approx(expected, abs=1e-12)


def test_roc_curve_reduced_to_50_points_keeps_its_ends_and_area() -> None:
    source = torch.Generator().manual_seed(0)
    labels = torch.rand(5000, generator=source) < 0.3
    scores = torch.randn(5000, generator=source) + labels.float()
    false, true = roc_curve(scores, labels, points=50)
    assert len(false) == 51
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (false.diff() >= 0).all()
    assert (true.diff() >= 0).all()
    assert torch.trapezoid(true, false).item() == pytest.approx(roc_auc(scores, labels).item(), abs=2e-3)


def test_auc_of_one_class_is_undefined() -> None:
    assert roc_auc(torch.arange(3.0), torch.ones(3, dtype=torch.bool)).isnan()
    assert roc_auc(torch.arange(3.0), torch.zeros(3, dtype=torch.bool)).isnan()
