"""The validation split and the users' item lists, against slow references."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workloads.data.interactions.splits import hold_out, user_csr

N_USERS = 12
Pairs = NDArray[np.int32]

pair_sets = st.sets(st.tuples(st.integers(0, N_USERS - 1), st.integers(0, 60)), max_size=150)
seeds = st.integers(0, 2**63)


def array(pairs: Any) -> Pairs:
    return np.array(list(pairs), np.int32).reshape(-1, 2)


@given(pair_sets, seeds)
def test_hold_out_takes_a_tenth_of_each_user(pairs: set[tuple[int, int]], seed: int) -> None:
    rows = array(pairs)
    mask = hold_out(rows, N_USERS, 0.1, seed)
    assert mask.shape == (len(rows),)
    assert mask.dtype == np.bool_
    for user in range(N_USERS):
        n = int((rows[:, 0] == user).sum())
        expected = 0 if n < 2 else max(1, (n + 5) // 10)
        assert int(mask[rows[:, 0] == user].sum()) == expected


@given(pair_sets, seeds, st.floats(0.001, 0.999))
def test_hold_out_leaves_each_user_a_train_row_at_any_fraction(
    pairs: set[tuple[int, int]], seed: int, fraction: float
) -> None:
    rows = array(pairs)
    mask = hold_out(rows, N_USERS, fraction, seed)
    for user in range(N_USERS):
        held_out = mask[rows[:, 0] == user]
        if held_out.size:
            assert not held_out.all()
            assert held_out.any() == (held_out.size >= 2)
            assert abs(held_out.sum() - fraction * held_out.size) <= 1


@given(pair_sets, seeds, st.randoms(use_true_random=False))
def test_hold_out_is_independent_of_the_order_of_rows(pairs: set[tuple[int, int]], seed: int, random: Any) -> None:
    ordered = array(sorted(pairs))
    shuffled = list(map(tuple, ordered.tolist()))
    random.shuffle(shuffled)
    left = ordered[hold_out(ordered, N_USERS, 0.1, seed)].tolist()
    right = array(shuffled)[hold_out(array(shuffled), N_USERS, 0.1, seed)].tolist()
    assert sorted(left) == sorted(right)


def test_every_interaction_is_held_out_with_the_same_probability() -> None:
    rows = array((user, item) for user in range(3) for item in range(20))
    n_seeds = 3000
    held_out = sum(hold_out(rows, 3, 0.1, seed).astype(int) for seed in range(n_seeds))
    expected = 0.1 * n_seeds
    # The statistic sums squared deviations over 60 cells; a cell's variance is 0.9 * expected. A user's items are drawn
    # without replacement: the user's 20 cells have 19 degrees of freedom, hence the factor 19/20.
    statistic = float(((held_out - expected) ** 2).sum() / (0.9 * expected) * 19 / 20)
    assert 25 < statistic < 100  # chi-squared with 57 degrees of freedom: p < 0.001 outside


def test_hold_out_matches_the_recorded_digest() -> None:
    rows = array((user, item) for user in range(50) for item in range(0, 200, 1 + user % 7))
    mask = hold_out(rows, 50, 0.1, seed=7)
    digest = hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()
    assert digest == "a897b884bddfab7c6307fc9b11b786673056186534c00103c94ff2bdd0ddcd22"


def test_seeds_give_different_splits() -> None:
    rows = array((user, item) for user in range(5) for item in range(30))
    assert not np.array_equal(hold_out(rows, 5, 0.1, 0), hold_out(rows, 5, 0.1, 1))


@given(pair_sets)
@settings(max_examples=50)
def test_item_lists_equal_those_of_a_plain_loop(pairs: set[tuple[int, int]]) -> None:
    indptr, indices = user_csr(array(pairs), N_USERS)
    assert indptr.dtype == np.int64
    assert indices.dtype == np.int32
    assert indptr.shape == (N_USERS + 1,)
    for user in range(N_USERS):
        expected = sorted(item for owner, item in pairs if owner == user)
        assert indices[indptr[user] : indptr[user + 1]].tolist() == expected


def test_item_lists_keep_the_largest_32_bit_ids() -> None:
    rows = array([(1, 2**31 - 1), (1, 0), (0, 2**31 - 1)])
    indptr, indices = user_csr(rows, 2)
    assert indptr.tolist() == [0, 1, 3]
    assert indices.tolist() == [2**31 - 1, 0, 2**31 - 1]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fraction_out_of_bounds_raises_value_error(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        hold_out(array([(0, 0)]), 1, fraction)


@pytest.mark.parametrize("user", [-1, 2])
def test_user_id_out_of_bounds_raises_value_error(user: int) -> None:
    with pytest.raises(ValueError, match="user ids"):
        hold_out(array([(user, 0)]), 2)
    with pytest.raises(ValueError, match="user ids"):
        user_csr(array([(user, 0)]), 2)
