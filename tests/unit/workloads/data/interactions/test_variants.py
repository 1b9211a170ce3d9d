"""Other splits and injected noise, against slow references."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from workloads.data import DataError, Interactions, ReadOptions, check_readable, load_interactions
from workloads.data.interactions.variants import Split, rated_from, resplit, with_noise
from workloads.recommender.dataset import prepare
from workloads.recommender.params import Params

N_USERS, N_ITEMS = 7, 9
rated = st.dictionaries(
    st.tuples(st.integers(0, N_USERS - 1), st.integers(0, N_ITEMS - 1)), st.integers(1, 5), min_size=1, max_size=50
)
seeds = st.integers(0, 2**63)


def refuse_unreadable(name: str, root: Path, split: str) -> None:
    check_readable(name, root, ReadOptions(split=split))


def interactions(ratings: dict[tuple[int, int], int], n_test: int = 0) -> Interactions:
    """A dataset whose test part is the last ``n_test`` ratings, and whose times are the positions of the ratings."""
    pairs = np.array([*ratings], np.int32)
    values, times = np.array([*ratings.values()], np.float32), np.arange(len(ratings))
    cut = len(ratings) - n_test
    return Interactions(
        N_USERS, N_ITEMS, pairs[:cut], pairs[cut:], values[:cut], values[cut:],
        train_times=times[:cut], test_times=times[cut:],
    )  # fmt: skip


def rows(data: Interactions, part: str) -> set[tuple[float, ...]]:
    columns = (getattr(data, part), getattr(data, f"{part}_ratings"), getattr(data, f"{part}_times"))
    return {(*pair, float(rating), int(time)) for pair, rating, time in zip(columns[0].tolist(), *columns[1:])}


def drawn(pairs: list[tuple[int, int]], fraction: float, seed: int) -> set[tuple[int, int]]:
    """Reference: the sorted pairs get raw draws of PCG64, and the pairs with the smallest draws are chosen."""
    n = len(pairs)
    count = min(max(int(fraction * n + 0.5), min(n - 1, 1)), n - 1)
    draws = np.random.PCG64(seed).random_raw(n).tolist()
    return {pair for _, pair in sorted(zip(draws, sorted(pairs)))[:count]}


# Splits


@given(rated, seeds, st.integers(0, 10))
def test_a_random_split_is_a_fifth_of_all_interactions(ratings: dict[Any, int], seed: int, n_test: int) -> None:
    before = interactions(ratings, min(n_test, len(ratings) - 1))
    data = resplit(before, "random", seed)
    assert {*map(tuple, data.test.tolist())} == drawn([*ratings], 0.2, seed)
    assert rows(data, "train") | rows(data, "test") == rows(before, "train") | rows(before, "test")
    assert len(data.train) + len(data.test) == len(ratings)


@given(rated, seeds)
def test_a_clean_split_is_half_of_the_highest_ratings(ratings: dict[Any, int], seed: int) -> None:
    before = interactions(ratings, len(ratings) // 3)
    data = resplit(before, "clean", seed)
    highest = [pair for pair, rating in ratings.items() if rating == max(ratings.values())]
    assert {*map(tuple, data.test.tolist())} == drawn(highest, 0.5, seed)
    assert rows(data, "train") | rows(data, "test") == rows(before, "train") | rows(before, "test")


@given(rated, seeds, st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_random_and_clean_splits_are_independent_of_the_order_of_rows(
    ratings: dict[Any, int], seed: int, random: Any
) -> None:
    shuffled = [*ratings.items()]
    random.shuffle(shuffled)
    for split in ("random", "clean"):
        one, other = (resplit(interactions(found), split, seed) for found in (ratings, dict(shuffled)))
        assert {*map(tuple, one.test.tolist())} == {*map(tuple, other.test.tolist())}


def test_official_split_is_kept_or_drawn_at_random_if_missing() -> None:
    ratings = {(user, item): 1 + item % 5 for user in range(N_USERS) for item in range(N_ITEMS)}
    own = interactions(ratings, 5)
    assert resplit(own, "official") is own
    unsplit = interactions(ratings)
    np.testing.assert_array_equal(resplit(unsplit, "official").test, resplit(unsplit, "random").test)


def test_clean_from_keeps_train_and_only_the_high_ratings_of_test() -> None:
    data = interactions({(0, 0): 5, (0, 1): 1, (0, 2): 2, (1, 1): 3, (1, 2): 5}, 3)
    clean = resplit(data, "clean", clean_from=3)
    np.testing.assert_array_equal(clean.train, data.train)
    np.testing.assert_array_equal(clean.test, [[1, 1], [1, 2]])
    np.testing.assert_array_equal(clean.test_ratings, [3, 5])
    np.testing.assert_array_equal(clean.test_times, [3, 4])


def test_a_clean_split_needs_ratings(tmp_path: Path) -> None:
    for refuse in (load_interactions, refuse_unreadable):
        with pytest.raises(DataError, match=r"split=clean needs ratings.*split=official or split=random"):
            refuse("synthetic", tmp_path, split="clean")


@pytest.mark.parametrize(("stray", "refused"), [(1, True), (2, True), (3, False), (40, False)])
def test_clean_split_is_refused_if_the_highest_rating_is_too_rare(stray: int, refused: bool, tmp_path: Path) -> None:
    values = [55] * stray + [1 + row % 5 for row in range(150 - stray)]
    table = tmp_path / "own.csv"
    lines = (f"{row % 10},{row // 10},{value}" for row, value in enumerate(values))
    table.write_text("\n".join(["user,item,rating", *lines]) + "\n")
    if not refused:
        assert len(load_interactions(str(table), tmp_path, "clean").test) == (stray + 1) // 2
        return
    for refuse in (load_interactions, refuse_unreadable):
        with pytest.raises(DataError, match=rf"highest rating, 55,.*got {stray} of 150; .*2%\. Correct.*split=random"):
            refuse(str(table), tmp_path, split="clean")
    assert len(load_interactions(str(table), tmp_path, "random").test) == 30


def test_random_split_accepts_negative_and_fractional_ratings(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("user,item,rating\n" + "".join(f"{row % 4},{row // 4},{row - 9.5}\n" for row in range(20)))
    data = load_interactions(str(table), tmp_path, "random")
    assert data.train_ratings is not None
    assert (data.train_ratings < 0).any()
    assert len(data.train) == 16


def test_random_and_clean_splits_match_the_recorded_digest() -> None:
    ratings = {(user, item): 1 + (user * item) % 5 for user in range(N_USERS) for item in range(N_ITEMS)}
    tests = [resplit(interactions(ratings), split).test for split in ("random", "clean")]
    digest = hashlib.sha256(b"".join(np.sort(test @ [N_ITEMS, 1]).astype("<i8").tobytes() for test in tests))
    assert digest.hexdigest() == "03e7fbb19bc07a24654f47ea296dbe1e3611f99c7d9547a0ad6690f1591da426"


@pytest.mark.parametrize("split", ["random", "official"])
def test_single_interaction_is_put_into_train(split: Split) -> None:
    data = resplit(interactions({(0, 0): 5}), split)
    assert (len(data.train), len(data.test)) == (1, 0)


def test_random_split_of_synthetic_data_keeps_the_truth(tmp_path: Path) -> None:
    own, other = (load_interactions("synthetic", tmp_path, split) for split in ("official", "random"))
    assert other.truth is own.truth
    assert len(other.train) + len(other.test) == len(own.train) + len(own.test)
    assert len(other.test) == round(0.2 * 20_669)
    assert load_interactions("synthetic", tmp_path, "random") is other


# Minimum rating


@given(rated, st.integers(0, 6), st.integers(0, 10))
def test_low_ratings_are_left_out_of_both_parts(ratings: dict[Any, int], least: int, n_test: int) -> None:
    before = interactions(ratings, min(n_test, len(ratings) - 1))
    expected = {part: {row for row in rows(before, part) if row[2] >= least} for part in ("train", "test")}
    if any(rows(before, part) and not expected[part] for part in expected):
        with pytest.raises(DataError, match=rf"has a rating of at least {least}: got at most .* lower dataset_min_r"):
            rated_from(before, least)
        return
    data = rated_from(before, least)
    assert {part: rows(data, part) for part in expected} == expected
    assert (data.n_users, data.n_items) == (N_USERS, N_ITEMS)


def test_min_rating_that_is_not_a_binary_fraction_keeps_equal_ratings() -> None:
    pairs, values = np.array([(0, 0), (0, 1)], np.int32), np.array([3.1, 3.0], np.float32)
    data = rated_from(Interactions(1, 2, pairs, pairs[:0], values, values[:0]), 3.1)
    assert data.train.tolist() == [[0, 0]]


def test_min_rating_without_ratings_is_refused(tmp_path: Path) -> None:
    options = ReadOptions(min_rating=4)
    for refuse in (load_interactions, lambda name, root, **given: check_readable(name, root, options)):
        with pytest.raises(
            DataError, match=r"dataset_min_rating needs ratings, and the dataset has none.*Leave it out"
        ):
            refuse("synthetic", tmp_path, min_rating=4)


# Splits by time

timed = st.lists(
    st.tuples(st.integers(0, N_USERS - 1), st.integers(0, N_ITEMS - 1), st.integers(0, 12)),
    min_size=1, max_size=50, unique_by=lambda row: row[:2],
)  # fmt: skip


def timed_interactions(rows: list[tuple[int, int, int]], n_test: int = 0) -> Interactions:
    table = np.array(rows, np.int64)
    pairs, times = table[:, :2].astype(np.int32), table[:, 2]
    cut = max(1, len(rows) - n_test)
    return Interactions(N_USERS, N_ITEMS, pairs[:cut], pairs[cut:], train_times=times[:cut], test_times=times[cut:])


def parts(data: Interactions) -> list[set[tuple[int, int]]]:
    """The pairs of train without validation, of validation, and of test."""
    assert data.held_out is not None
    return [
        set(map(tuple, rows.tolist())) for rows in (data.train[~data.held_out], data.train[data.held_out], data.test)
    ]


def splitmix64(state: int) -> int:
    """The definition by Steele, Lea and Flood, OOPSLA 2014."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(timed, st.integers(0, 10))
def test_leave_last_out_matches_reference(rows: list[tuple[int, int, int]], n_test: int) -> None:
    expected: list[set[tuple[int, int]]] = [set(), set(), set()]
    for user in range(N_USERS):
        order = sorted((time, splitmix64(u << 32 | item), item) for u, item, time in rows if u == user)
        own = [(user, item) for *_, item in order]
        test = own[-1:] if len(own) > 1 else []
        validation = own[-2:-1] if len(own) > 2 else []
        expected[0] |= set(own) - set(test) - set(validation)
        expected[1] |= set(validation)
        expected[2] |= set(test)
    if not expected[2]:
        with pytest.raises(DataError, match=r"leave_last_out leaves the test part empty.*expected a user with two"):
            resplit(timed_interactions(rows, n_test), "leave_last_out")
        return
    assert parts(resplit(timed_interactions(rows, n_test), "leave_last_out")) == expected


def test_ties_in_time_are_broken_evenly_and_independently_of_row_order() -> None:
    """Ties ordered by item number would put the items with the last numbers, often the rarest ones, into test."""
    pairs = np.array([(user, item) for user in range(2000) for item in range(10)], np.int32)

    def last(order: Any) -> Any:
        times = np.zeros(len(pairs), np.int64)
        data = Interactions(2000, 10, pairs[order], pairs[:0], train_times=times, test_times=times[:0])
        return resplit(data, "leave_last_out").test

    rows = np.arange(len(pairs))
    test = last(rows)
    np.testing.assert_allclose(np.bincount(test[:, 1]) / 2000, np.full(10, 0.1), atol=0.03)
    shuffled = last(np.random.default_rng(0).permutation(rows))
    assert {*map(tuple, shuffled.tolist())} == {*map(tuple, test.tolist())}


@given(timed, st.integers(0, 10))
def test_global_time_trains_only_on_interactions_before_those_of_test(
    rows: list[tuple[int, int, int]], n_test: int
) -> None:
    when = {(user, item): time for user, item, time in rows}
    latest_fifth = sorted(when.values())[int(0.8 * len(when)) :]
    cut = latest_fifth[0] if latest_fifth[0] > min(when.values()) else latest_fifth[0] + 1
    early = {user for (user, _), time in when.items() if time < cut}
    if not any(time >= cut and user in early for (user, _), time in when.items()):
        with pytest.raises(DataError, match=r"global_time leaves the test part empty.*expected a user with one before"):
            resplit(timed_interactions(rows, n_test), "global_time")
        return
    train, validation, test = parts(resplit(timed_interactions(rows, n_test), "global_time"))
    latest = [max((when[pair] for pair in part), default=-1) for part in (train, validation)]
    assert all(when[pair] > latest[0] for pair in validation | test)
    assert all(when[pair] > latest[1] for pair in test)
    left = set(when) - train - validation - test
    assert {user for user, _ in left}.isdisjoint({user for user, _ in train | validation})
    assert {user for user, _ in test} <= {user for user, _ in train | validation}
    if len(set(when.values())) == len(when):
        assert len(test) + len(left) == len(when) - int(np.floor(0.8 * len(when)))


def test_workload_validates_on_the_validation_part_of_a_split_by_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The workload uses the split's validation part, without users who have no earlier interactions."""
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "own.csv"
    lines = [f"{user},{item},{10 * item + user}" for user in range(4) for item in range(6)]
    late = ["9,0,41", "9,1,41"]
    path.write_text("\n".join(["user,item,timestamp", *lines, *late]))
    data = load_interactions(str(path), tmp_path, "global_time")
    made = prepare(data, 0, True, torch.device("cpu"))
    assert data.user_ids is not None
    named = data.user_ids[made.validation.users.numpy()].tolist()
    assert named == [1]
    assert 9 in data.user_ids[made.seen.users.numpy()].tolist()
    assert made.validation.items.tolist() == [4]
    assert prepare(data, 0, False, torch.device("cpu")).train.items.numel() == len(data.train)


def test_split_by_time_with_an_empty_validation_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interactions with equal times stay in one part: with two times in all, the second one is the test part."""
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "own.csv"
    lines = [f"{user},{item},{int(item >= 8)}" for user in range(20) for item in range(10)]
    path.write_text("\n".join(["user,item,timestamp", *lines]))
    params = Params(dataset=str(path), split="global_time")
    with pytest.raises(DataError, match=r"split=global_time leaves no user .* got 0 of 160 in validation"):
        params.check_data(tmp_path)
    params.check_data(tmp_path, holdout=False)


@pytest.mark.parametrize("row", ["{user},{item},7", "{user},{item},{user}"], ids=["one time", "a time for each user"])
def test_global_time_with_an_empty_test_part_is_refused(row: str, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    lines = [row.format(user=user, item=item) for user in range(20) for item in range(10)]
    path.write_text("\n".join(["user,item,timestamp", *lines]))
    with pytest.raises(
        DataError, match=r"split=global_time leaves the test part empty: got 200 .*\. Take finer timest"
    ):
        refuse_unreadable(str(path), tmp_path, "global_time")


@pytest.mark.parametrize("split", ["leave_last_out", "global_time"])
def test_split_by_time_without_times_or_with_a_split_seed_is_refused(
    split: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=rf"split={split} needs the times .*Use split=official or split=random"):
        refuse_unreadable("synthetic", tmp_path, split)
    with pytest.raises(ValidationError, match=rf"split_seed=1 has no effect with split={split}"):
        Params(split=split, split_seed=1)


# Noise


@given(rated, st.floats(0, 0.5), seeds)
def test_noise_is_new_distinct_and_marked(ratings: dict[Any, int], rate: float, seed: int) -> None:
    clean = interactions(ratings, len(ratings) // 4)
    count = round(rate * len(clean.train))
    if count > N_USERS * N_ITEMS - len(ratings):
        with pytest.raises(DataError, match=r"too few pairs .* for the noise.*Set dataset_noise to at most 0\.?\d*\.$"):
            with_noise(clean, rate, seed)
        return
    noisy = with_noise(clean, rate, seed)
    assert noisy.noise is not None
    assert noisy.train_ratings is not None
    assert noisy.train_times is not None
    assert rows(replace(noisy, train=noisy.train[~noisy.noise], train_ratings=noisy.train_ratings[~noisy.noise],
                        train_times=noisy.train_times[~noisy.noise]), "train") == rows(clean, "train")  # fmt: skip
    added = {*map(tuple, noisy.train[noisy.noise].tolist())}
    assert len(added) == count == int(noisy.noise.sum())
    assert added.isdisjoint(ratings)
    assert all(0 <= user < N_USERS and 0 <= item < N_ITEMS for user, item in added)
    assert not noisy.train_ratings[noisy.noise].any()
    np.testing.assert_array_equal(noisy.test, clean.test)
    np.testing.assert_array_equal(with_noise(clean, rate, seed).train, noisy.train)


@given(rated, st.floats(0, 0.5), seeds)
def test_noise_matches_reference_draws_of_free_pairs(ratings: dict[Any, int], rate: float, seed: int) -> None:
    """Reference: each draw of PCG64 is the number of a free pair, in the order of users and items."""
    free = [(user, item) for user in range(N_USERS) for item in range(N_ITEMS) if (user, item) not in ratings]
    count = min(round(rate * len(ratings)), len(free))
    draws = np.random.PCG64(seed).random_raw(5000) % np.uint64(max(len(free), 1))
    first = [*dict.fromkeys(draws.tolist())][:count]
    noisy = with_noise(interactions(ratings), count / len(ratings), seed)
    assert [*map(tuple, noisy.train[noisy.noise].tolist())] == [free[number] for number in sorted(first)]


@given(rated)
def test_noise_rate_suggested_by_the_error_is_accepted(ratings: dict[Any, int]) -> None:
    clean = interactions(ratings)
    with pytest.raises(DataError) as refused:
        with_noise(clean, N_USERS * N_ITEMS)
    with_noise(clean, float(str(refused.value.fix).rpartition(" ")[2]))


def test_noise_can_take_every_free_pair() -> None:
    ratings = {(user, item): 3 for user in range(N_USERS) for item in range(N_ITEMS) if (user + item) % 2}
    free = N_USERS * N_ITEMS - len(ratings)
    noisy = with_noise(interactions(ratings), free / len(ratings))
    assert len({*map(tuple, noisy.train.tolist())}) == N_USERS * N_ITEMS


@pytest.mark.slow
def test_every_free_pair_becomes_noise_with_the_same_probability() -> None:
    ratings = {(user, item): 3 for user in range(N_USERS) for item in range(N_ITEMS) if (user * item) % 3}
    clean, n_seeds = interactions(ratings), 2000
    free, count = N_USERS * N_ITEMS - len(ratings), round(0.3 * len(ratings))
    hits = np.zeros((N_USERS, N_ITEMS))
    for seed in range(n_seeds):
        noisy = with_noise(clean, 0.3, seed)
        hits[tuple(noisy.train[noisy.noise].T)] += 1
    found = hits[np.array([[(u, i) not in ratings for i in range(N_ITEMS)] for u in range(N_USERS)])]
    chance = count / free
    # Without replacement a cell's variance is chance (1 - chance), and the sum has one degree of freedom less.
    statistic = ((found - n_seeds * chance) ** 2).sum() / (n_seeds * chance * (1 - chance)) * (free - 1) / free
    assert abs(statistic - (free - 1)) < 4 * np.sqrt(2 * (free - 1))


def test_noise_of_synthetic_data_is_not_liked(tmp_path: Path) -> None:
    data = load_interactions("synthetic", tmp_path, noise=0.5)
    assert data.noise is not None
    assert data.truth is not None
    assert int(data.noise.sum()) == round(0.5 * 16_531)
    assert not data.truth[tuple(data.train[data.noise].T)].any()
    assert load_interactions("synthetic", tmp_path, noise=0.5) is data
