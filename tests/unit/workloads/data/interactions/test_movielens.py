"""The original MovieLens-100K dataset, if ORCHESTRATOR_DATA holds it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workloads.data import DataError, Interactions, check, fingerprint, load_interactions, occupations, verify
from workloads.data.interactions.splits import hold_out
from workloads.data.interactions.variants import Split

pytestmark = pytest.mark.data


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    held = os.environ.get("ORCHESTRATOR_DATA")
    if not held or not (Path(held) / "ml-100k" / "100k_train.csv").exists():
        pytest.skip("ORCHESTRATOR_DATA is unset or holds no ml-100k")
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    return Path(held)


@pytest.fixture
def data(root: Path) -> Interactions:
    return load_interactions("ml-100k", root)


def test_movielens_100k_has_the_expected_counts_of_users_items_and_pairs(data: Interactions) -> None:
    assert (data.n_users, data.n_items) == (943, 1682)
    assert data.train.shape == (80_000, 2)
    assert data.test.shape == (20_000, 2)
    assert len(np.unique(data.train[:, 1])) == 1647
    assert len(np.unique(data.test[:, 1])) == 1411
    per_user = np.bincount(data.train[:, 0]), np.bincount(data.test[:, 0])
    assert [(counts.size, counts.min(), counts.max()) for counts in per_user] == [
        (943, 16, 590),
        (943, 4, 147),
    ]


def test_pairs_and_ratings_equal_those_read_by_pandas(data: Interactions, root: Path) -> None:
    for part, pairs, ratings in (
        ("train", data.train, data.train_ratings),
        ("test", data.test, data.test_ratings),
    ):
        table = pd.read_csv(root / "ml-100k" / f"100k_{part}.csv")
        np.testing.assert_array_equal(pairs, table[["user", "item"]].to_numpy())
        np.testing.assert_array_equal(ratings, table["rating"].to_numpy())


def test_no_pair_is_in_both_train_and_test(data: Interactions) -> None:
    train = set(map(tuple, data.train.tolist()))
    assert len(train) == 80_000
    assert train.isdisjoint(map(tuple, data.test.tolist()))


def test_movielens_100k_is_intact_and_has_the_recorded_fingerprint(root: Path) -> None:
    assert verify("ml-100k", root) == []
    assert fingerprint("ml-100k", root) == "bc0dce694b169a727f2505378c55cbaeabf103642627b1f26c946dac835089eb"


def test_validation_part_has_the_expected_size(data: Interactions) -> None:
    mask = hold_out(data.train, data.n_users)
    assert int(mask.sum()) == 8_057
    assert np.bincount(data.train[~mask, 0], minlength=943).min() == 14


def test_truncated_copy_is_refused(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ml-100k"
    folder.mkdir()
    for name in ("100k_train.csv", "100k_test.csv"):
        shutil.copyfile(root / "ml-100k" / name, folder / name)
    check("ml-100k", tmp_path)
    with (folder / "100k_train.csv").open("r+b") as file:
        file.truncate(399_996)  # in the middle of a line
    with pytest.raises(DataError, match=r"100k_train.csv, line \d{5}: the line is truncated: got '"):
        check("ml-100k", tmp_path)


def test_the_original_format_holds_the_same_ratings(data: Interactions, root: Path) -> None:
    """ml-100k numbers users and items by their first appearance in the original file."""
    assert verify("ml-100k-raw", root) == []
    raw = load_interactions("ml-100k-raw", root, "random")
    assert (len(raw.train), len(raw.test)) == (80_000, 20_000)
    whole = pd.read_csv(root / "ml-100k" / "u.data.gz", sep="\t", header=None)
    users, items = ({name: number for number, name in enumerate(whole[column].unique())} for column in (0, 1))
    assert raw.user_ids is not None
    assert raw.item_ids is not None
    found = set()
    for pairs, ratings in ((raw.train, raw.train_ratings), (raw.test, raw.test_ratings)):
        assert ratings is not None
        names = zip(raw.user_ids[pairs[:, 0]].tolist(), raw.item_ids[pairs[:, 1]].tolist(), ratings.tolist())
        found |= {(users[user], items[item], rating) for user, item, rating in names}
    split = ((data.train, data.train_ratings), (data.test, data.test_ratings))
    assert found == {(*pair, float(r)) for pairs, ratings in split for pair, r in zip(pairs.tolist(), ratings)}


def test_movielens_1m_without_times_is_read_but_has_no_split_by_time(root: Path) -> None:
    if not (root / "ml-1m" / "ratings.csv.gz").exists() or (root / "ml-1m" / "ratings.dat").exists():
        pytest.skip("ORCHESTRATOR_DATA holds no ml-1m without times")
    check("ml-1m", root)
    assert fingerprint("ml-1m", root) == "15ccff646bc9286d72b8b57e6226fc7f32e75e65e05715d6e0ca908d7d26ec7d"
    data = load_interactions("ml-1m", root)
    assert data.train_ratings is not None
    assert (len(data.train), len(data.test), len(np.unique(data.train[:, 1]))) == (800_167, 200_042, 3_675)
    assert occupations("ml-1m", root).max() == 20
    with pytest.raises(DataError, match="split=leave_last_out needs the times"):
        load_interactions("ml-1m", root, "leave_last_out")


@pytest.mark.parametrize("split", ["leave_last_out", "global_time"])
def test_splits_by_time_have_the_expected_sizes(root: Path, split: Split) -> None:
    data = load_interactions("ml-100k-raw", root, split)
    assert data.train_times is not None
    assert data.test_times is not None
    assert data.held_out is not None
    sizes = (int((~data.held_out).sum()), int(data.held_out.sum()), len(data.test))
    assert sizes == {"leave_last_out": (98_114, 943, 943), "global_time": (71_996, 8_003, 2_953)}[split]
    if split == "global_time":
        assert data.train_times[~data.held_out].max() < data.train_times[data.held_out].min()
        assert data.train_times.max() < data.test_times.min()


def test_clean_split_has_only_ratings_of_five_in_test(root: Path) -> None:
    """Table 3.1 has 89,372 and 10,628 of 21,201 five-star ratings, because each was drawn independently there."""
    data = load_interactions("ml-100k", root, "clean")
    assert (len(data.train), len(data.test)) == (89_399, 10_601)
    assert data.test_ratings is not None
    assert (data.test_ratings == 5).all()


@pytest.mark.parametrize("split", ["official", "random", "clean"])
def test_min_rating_of_four_keeps_the_ratings_of_four_and_five(root: Path, split: Split) -> None:
    """55,375 of 100,000 ratings are 4 or 5, the usual count after binarising MovieLens at 4; 21,201 are 5."""
    data = load_interactions("ml-100k", root, split, min_rating=4)
    assert len(data.train) + len(data.test) == 55_375
    assert (data.n_users, data.n_items) == (943, 1682)
    assert len(data.test) == {"official": 11_050, "random": 11_075, "clean": 10_601}[split]


def test_occupations_equal_those_read_by_pandas(root: Path) -> None:
    users = pd.read_csv(root / "ml-100k" / "users.csv").sort_values("user")
    names = np.unique(users["occupation"])
    np.testing.assert_array_equal(names[occupations("ml-100k", root)], users["occupation"])
    by_name = users.sort_values("orig_user_id")["occupation"]
    np.testing.assert_array_equal(names[occupations("ml-100k-raw", root)], by_name)
