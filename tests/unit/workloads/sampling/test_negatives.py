"""Negative sampling: the generator's published values, exactness, uniformity, and no dependence on the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.virtual_device import CUDA, virtual_cuda
from workloads.sampling import negatives, pairs
from workloads.sampling.negatives import Key, Unobserved, permutation, random_bits, subset, uniform


def csr(positives: list[set[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    counts = torch.tensor([0] + [len(items) for items in positives])
    flat = [item for items in positives for item in sorted(items)]
    return counts.cumsum(0), torch.tensor(flat, dtype=torch.int64)


def test_random_bits_are_splitmix64() -> None:
    """The values are those published for seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert random_bits(1234567, torch.arange(1, 6)).tolist() == [value >> 32 for value in published]


@pytest.mark.parametrize("n", [0, 1, 7, 100_000])
def test_a_permutation_has_every_number_once(n: int) -> None:
    found = permutation(5, n, torch.device("cpu"))
    assert found.sort().values.tolist() == list(range(n))
    assert n < 7 or not torch.equal(found, permutation(6, n, torch.device("cpu")))


def test_permutations_are_uniform() -> None:
    drawn = torch.stack([permutation(key, 3, torch.device("cpu")) for key in range(6000)])
    counts = (drawn @ torch.tensor([9, 3, 1])).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000).square() / 1000).sum() < 20.5  # chi-square, 5 degrees of freedom, p = .001


def test_random_bits_of_large_keys_and_counters_match_splitmix64() -> None:
    def splitmix64(state: int) -> int:
        z = state % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    key, counters = 2**63 - 1, [0, 1, 2**40, 2**62]
    expected = [splitmix64(key + counter * 0x9E3779B97F4A7C15) >> 32 for counter in counters]
    assert random_bits(key, torch.tensor(counters)).tolist() == expected


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.sets(st.integers(0, n - 1)), min_size=1))))
@settings(deadline=None, max_examples=60)
def test_pick_returns_the_unobserved_item_of_each_rank(case: tuple[int, list[set[int]]]) -> None:
    n_items, positives = case
    indptr, items = csr(positives)
    for listed in (True, False):
        unobserved = Unobserved(indptr, items, n_items, listed)
        expected = [sorted(set(range(n_items)) - seen) for seen in positives]
        assert unobserved.counts.tolist() == [len(left) for left in expected]
        for user, left in enumerate(expected):
            users, ranks = torch.full((len(left),), user), torch.arange(len(left))
            assert unobserved.pick(users, ranks).tolist() == left
        if not any(expected):
            continue
        users, ranks = torch.arange(len(positives)), torch.arange(n_items).unsqueeze(1).expand(-1, len(positives))
        picked = unobserved.pick(users, ranks)
        for user, left in enumerate(expected):
            assert picked[: len(left), user].tolist() == left


def test_unobserved_items_of_large_catalogues_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    indptr, items = csr([{1}, {0, 7}])
    assert Unobserved(indptr, items, 50).listed
    monkeypatch.setattr(negatives, "LISTED", 99)
    assert not Unobserved(indptr, items, 50).listed


@pytest.mark.parametrize("most", [0, 2**20])
@pytest.mark.parametrize("count", [0, 4, 2000])
def test_pair_set_contains_exactly_its_pairs(count: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set is stored as flags, or searched after a filter that other pairs may also pass."""
    monkeypatch.setattr(pairs, "LISTED", most)
    every = torch.cartesian_prod(torch.arange(40), torch.arange(100))
    held = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(count))[:count]]
    known = {tuple(pair) for pair in held.tolist()}
    found = pairs.PairSet(*held.T, n_users=40, n_items=100)
    assert found.contains(*every.T).tolist() == [tuple(pair) in known for pair in every.tolist()]
    block = found.contains(torch.arange(40), torch.arange(100).unsqueeze(1).expand(-1, 40))
    assert block.T.flatten().tolist() == [tuple(pair) in known for pair in every.tolist()]


@pytest.mark.parametrize("listed", [True, False])
def test_a_positive_is_never_drawn(listed: bool) -> None:
    torch.manual_seed(1)
    positives = [set(torch.randperm(40)[:n].tolist()) for n in (0, 5, 38, 39)]
    unobserved = Unobserved(*csr(positives), 40, listed)
    users = torch.arange(4).repeat(2000)
    drawn = uniform(unobserved, users, torch.arange(8000), 11)
    assert all(item not in positives[user] for user, item in zip(users.tolist(), drawn.tolist()))


@pytest.mark.parametrize("listed", [True, False])
def test_uniform_draws_unobserved_items_uniformly(listed: bool) -> None:
    """Pearson's chi-square over the 27 unobserved items, at the 0.999 quantile of 26 degrees of freedom."""
    positives = {0, 7, 29}
    unobserved = Unobserved(*csr([positives]), 30, listed)
    n = 54_000
    for key in range(3):
        drawn = uniform(unobserved, torch.zeros(n, dtype=torch.int64), torch.arange(n), key)
        counts = torch.bincount(drawn, minlength=30).double()
        left = [item for item in range(30) if item not in positives]
        chi_square = ((counts[left] - n / 27) ** 2 / (n / 27)).sum().item()
        assert chi_square < 54.05


@pytest.mark.parametrize("listed", [True, False])
def test_draws_depend_on_the_counter_and_not_on_the_batch(listed: bool) -> None:
    unobserved = Unobserved(*csr([{1, 2}, {0}]), 20, listed)
    users, counters = torch.arange(100) % 2, torch.arange(100)
    whole = uniform(unobserved, users, counters, 3)
    parts = [uniform(unobserved, users[rows], counters[rows], 3) for rows in torch.split(torch.randperm(100), 7)]
    assert sorted(torch.cat(parts).tolist()) == sorted(whole.tolist())
    back = torch.randperm(100)
    assert torch.equal(uniform(unobserved, users[back], counters[back], 3), whole[back])
    assert not torch.equal(uniform(unobserved, users, counters, 4), whole)


@pytest.mark.parametrize("listed", [True, False])
def test_draw_for_a_user_with_all_items_returns_a_valid_item(listed: bool) -> None:
    unobserved = Unobserved(*csr([set(range(6)), {0}, set(range(6))]), 6, listed)
    drawn = uniform(unobserved, torch.tensor([0, 2]), torch.arange(2), 3)
    assert all(0 <= item < 6 for item in drawn.tolist())


@pytest.mark.parametrize("listed", [True, False])
def test_candidates_are_distinct_and_every_set_is_equally_probable(listed: bool) -> None:
    """Pearson's chi-square over the 10 pairs of 5 unobserved items, at the 0.999 quantile of 9 degrees of freedom."""
    unobserved = Unobserved(*csr([{1, 4}]), 7, listed)
    n = 20_000
    drawn = subset(unobserved, torch.zeros(n, dtype=torch.int64), torch.arange(n), 7, 2)
    sets = torch.bincount(drawn.amin(0) * 7 + drawn.amax(0), minlength=49)
    left = [0, 2, 3, 5, 6]
    counts = torch.tensor([sets[a * 7 + b] for a in left for b in left if a < b]).double()
    assert counts.sum() == n
    assert ((counts - n / 10) ** 2 / (n / 10)).sum().item() < 27.88


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_candidates_beyond_the_unobserved_items_repeat_the_first_one(size: int, listed: bool) -> None:
    """If a user has fewer unobserved items than requested, all are returned, followed by the first one again."""
    positives = [{0, 1, 2}, {1, 2, 3, 4, 5}, set()]
    unobserved = Unobserved(*csr(positives), 6, listed)
    users = torch.arange(3).repeat(50)
    drawn = subset(unobserved, users, torch.arange(150), 3, size)
    assert drawn.shape == (size, 150)
    for user, items in zip(users.tolist(), drawn.T.tolist()):
        left = set(range(6)) - positives[user]
        assert len(set(items)) == min(size, len(left))
        assert set(items) <= left
        assert all(item == items[0] for item in items[len(left) :])


@pytest.mark.parametrize("listed", [True, False])
def test_candidates_depend_on_the_counter_and_not_on_the_batch(listed: bool) -> None:
    unobserved = Unobserved(*csr([{1, 2}, {0}]), 20, listed)
    users, counters = torch.arange(100) % 2, torch.arange(100)
    whole = subset(unobserved, users, counters, 3, 4)
    back = torch.randperm(100)
    assert torch.equal(subset(unobserved, users[back], counters[back], 3, 4), whole[:, back])
    keys = torch.where(counters < 50, 3, 4)
    assert torch.equal(subset(unobserved, users, counters, keys, 4)[:, :50], whole[:, :50])


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("keys", [3, torch.tensor([3, 4]).repeat(50)])
def test_gpu_draws_equal_cpu_draws_without_synchronisation(keys: Key, listed: bool) -> None:
    users, counters = torch.arange(100) % 2, torch.arange(100)
    rows, items = csr([{1, 2, 5}, {0}])
    here = Unobserved(rows, items, 9, listed)
    expected = uniform(here, users, counters, keys), subset(here, users, counters, keys, 4)
    with virtual_cuda() as log:
        there = Unobserved(rows.to(CUDA), items.to(CUDA), 9, listed)
        users, counters = users.to(CUDA), counters.to(CUDA)
        keys = keys if isinstance(keys, int) else keys.to(CUDA)
        log.clear()
        drawn = uniform(there, users, counters, keys), subset(there, users, counters, keys, 4)
        assert not log.syncs
        assert not log.uploads
        assert all(torch.equal(own.cpu(), other) for own, other in zip(drawn, expected))
