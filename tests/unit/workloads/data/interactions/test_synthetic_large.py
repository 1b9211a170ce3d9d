"""The generator for benchmarks: exact sizes, skew, groups, and the same data on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.data import DATASETS
from workloads.data.interactions.synthetic_large import Sizes, generate_large


@given(st.integers(1, 60), st.integers(200, 300), st.integers(1, 9), st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_large_dataset_has_exact_sizes_and_distinct_pairs(n_users: int, n_items: int, n_groups: int, seed: int) -> None:
    sizes = Sizes(n_users, n_items, n_users * 6 + n_users // 2, n_groups, least=5, seed=seed)
    data = generate_large(sizes)
    pairs = np.concatenate([data.train, data.test])
    assert len(pairs) == len({*map(tuple, pairs.tolist())}) == sizes.n_interactions
    assert np.bincount(pairs[:, 0], minlength=n_users).min() >= sizes.least
    assert pairs[:, 1].max() < n_items


def test_synthetic_1m_has_the_expected_sizes_digest_and_skew() -> None:
    """A changed digest means a different dataset: update ``version`` too."""
    data = DATASETS["synthetic-1m"].reader(None)
    assert (data.n_users, data.n_items, len(data.train) + len(data.test)) == (30_000, 41_000, 1_000_000)
    assert len(data.test) == pytest.approx(200_000, rel=0.01)
    digest = hashlib.sha256(data.train.tobytes() + data.test.tobytes()).hexdigest()
    assert digest == "07a8dd29e79123ee1069309be644ce94bef8b75027b2956570d1fe4050171e9f"
    users, items = np.bincount(data.train[:, 0]), np.bincount(data.train[:, 1], minlength=41_000)
    assert users.max() > 10 * np.median(users)
    assert np.sort(items)[-4100:].sum() > 0.25 * items.sum()  # the most popular tenth
    assert (data.train[:, 0] % 50 == data.train[:, 1] % 50).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("n_interactions", [39, 101])
def test_too_many_or_too_few_interactions_raise_value_error(n_interactions: int) -> None:
    with pytest.raises(ValueError, match="too many or too few for 10 x 20"):
        generate_large(Sizes(10, 20, n_interactions, 1, least=4))
