"""Side information of BNS: priors from a file and from friends."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from pydantic import ValidationError

from workloads.contract import Runtime
from workloads.data import DATASETS, DataError
from workloads.recommender import samplers
from workloads.recommender.params import Params
from workloads.recommender.samplers import prior_table
from workloads.recommender.workload import Recommender

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)
BNS: dict[str, Any] = {"sampler": "bns", "dim": 4, "batch_size": 4096}


def build(**params: Any) -> Recommender:
    return Recommender(Params(**BNS, **params), RUNTIME)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_prior_file_replaces_the_popularity_prior_for_its_pairs(optimizer: str, tmp_path: Path) -> None:
    file = tmp_path / "prior.parquet"
    parquet.write_table(pa.table({"user": [7, 8], "item": [3, 4], "p": [0.25, 0.75]}), file)
    own = {"sampler": "bns", "dim": 4, "optimizer": optimizer}
    workload = Recommender(Params(**own, bns_prior="file", prior_file=str(file)), RUNTIME)
    workload.params.check_data(Path())
    table, groups = prior_table(workload.params, workload.data, Path())
    expected = (workload.data.popularity / workload.data.popularity.sum()).repeat(workload.data.n_users, 1)
    expected[7, 3], expected[8, 4] = 0.25, 0.75
    assert groups is not None
    assert torch.equal(table[groups], expected)
    assert len(table) == 3, "a row for each of the two users, and one for all others"
    plain = Recommender(Params(**own), RUNTIME)
    assert workload.train_epoch(1)["loss"] > 0
    assert plain.train_epoch(1)["loss"] > 0


def test_prior_file_of_items_applies_to_all_users(tmp_path: Path) -> None:
    file = tmp_path / "prior.parquet"
    parquet.write_table(pa.table({"item": [3], "p": [0.25]}), file)
    workload = build(bns_prior="file", prior_file=str(file))
    table, groups = prior_table(workload.params, workload.data, Path())
    assert groups is None
    assert table.shape == (1, workload.data.n_items)
    assert table[0, 3] == 0.25


def test_check_data_refuses_invalid_prior_file_and_missing_friends(tmp_path: Path) -> None:
    file = tmp_path / "prior.parquet"
    parquet.write_table(pa.table({"item": [3], "p": [2.0]}), file)
    with pytest.raises(DataError, match="p is out of range"):
        Params(**BNS, bns_prior="file", prior_file=str(file)).check_data(Path())
    with pytest.raises(DataError, match=r"dataset synthetic has no friends .*expected one of lastfm"):
        Params(**BNS, bns_prior="social").check_data(Path())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bns_prior": "file"}, "Set prior_file to its absolute path"),
        ({"bns_prior": "file", "prior_file": "own.parquet"}, "a path of a file must be absolute. Use /"),
        ({"prior_file": "/own.parquet"}, "prior_file=/own.parquet has no effect with bns_prior=popularity"),
    ],
)
def test_invalid_prior_file_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**BNS, **given)


@pytest.mark.parametrize("prior", ["popularity", "users", "uninformative"])
def test_prior_of_an_item_is_its_share_of_interactions_of_users_or_of_items(prior: str) -> None:
    """(4.16), with N all training interactions (E-4.16), or the number of users; 1 / I is that of BNS-3."""
    data = build(bns_prior=prior).data
    table, groups = prior_table(Params(**BNS, bns_prior=prior), data, Path())
    count = np.bincount(data.train.items.numpy(), minlength=data.n_items)
    expected = {"popularity": count / count.sum(), "users": count / data.n_users}.get(prior, 1 / data.n_items)
    np.testing.assert_allclose(table[0], np.broadcast_to(expected, count.shape), rtol=1e-6)
    assert groups is None


def test_social_prior_matches_a_loop_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """P = pop / N (1 + Δ), where Δ compares friends with the mean over users, as BNS-4 compares occupations."""
    pairs = np.array([[0, 1], [0, 2], [1, 0], [2, 0]], np.int32)
    known = dataclasses.replace(DATASETS["synthetic"], friends=lambda folder: pairs)
    monkeypatch.setitem(DATASETS, "synthetic", known)
    monkeypatch.setattr(samplers, "_AT_ONCE", 700)  # blocks smaller than the number of pairs of friends
    workload = build(bns_prior="social")
    data = workload.data
    table, groups = prior_table(workload.params, data, Path())
    assert groups is not None
    x = data.train.mask(0, data.n_users, data.n_items).double().numpy()
    friends = {user: [b for a, b in pairs.tolist() if a == user] for user in range(data.n_users)}
    by_friends = np.array([x[friends[user]].sum(0) for user in range(data.n_users)])
    linked = np.array([bool(friends[user]) for user in range(data.n_users)])
    by_friends[~linked] = by_friends[linked].mean(0)
    delta = (by_friends - by_friends.mean(0)) / np.maximum(by_friends.max(0), 1)
    expected = np.clip(x.sum(0) / x.sum() * (1 + delta), 0, 1)
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-9)
    assert not np.allclose(expected[0], expected[3])
    np.testing.assert_allclose(table[3], x.sum(0) / x.sum(), rtol=1e-5, err_msg="without friends: the popularity")
    assert workload.train_epoch(1)["loss"] > 0
