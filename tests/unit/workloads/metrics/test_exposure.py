"""Exposure of a recommender's lists, against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.metrics.exposure import coverage, gini, novelty, popularity

N_ITEMS, N_USERS = 6, 9
shown = st.lists(st.lists(st.integers(0, N_ITEMS - 1), unique=True, max_size=4), min_size=1, max_size=8)
popular = st.lists(st.integers(0, N_USERS), min_size=N_ITEMS, max_size=N_ITEMS)


def padded(lists: list[list[int]]) -> torch.Tensor:
    return torch.tensor([[*items, *[-1] * (4 - len(items))] for items in lists])


@given(shown, popular)
def test_exposure_metrics_match_a_loop_reference(lists: list[list[int]], counts: list[int]) -> None:
    tensor = torch.tensor(counts)
    for user, items in enumerate(lists):
        own = [counts[item] for item in items]
        expected = sum(own) / len(own) if own else 0
        assert popularity(padded(lists), tensor)[user].item() == pytest.approx(expected)
        bits = [-math.log2(max(count, 1) / N_USERS) for count in own]
        expected = sum(bits) / len(bits) if bits else 0
        assert novelty(padded(lists), tensor, N_USERS)[user].item() == pytest.approx(expected, abs=1e-6)
    times = [sum(item in items for items in lists) for item in range(N_ITEMS)]
    assert coverage(padded(lists), N_ITEMS) == pytest.approx(sum(count > 0 for count in times) / N_ITEMS)
    # The Gini coefficient as half the relative mean absolute difference.
    differences = sum(abs(a - b) for a in times for b in times)
    expected = differences / (2 * N_ITEMS * sum(times)) if sum(times) else 0
    assert gini(padded(lists), N_ITEMS) == pytest.approx(expected)


def test_gini_is_zero_for_equal_and_maximal_for_single_item_exposure() -> None:
    assert gini(torch.arange(10).view(5, 2), 10) == 0
    assert gini(torch.zeros(7, 1, dtype=torch.int64), 10) == pytest.approx(0.9)
