"""Positives from a minimum rating: training, evaluation, serving, prepared files and fingerprints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from orchestrator.config.spec import ExperimentSpec
from workloads.contract import Runtime
from workloads.data import DataError, load_interactions
from workloads.data.files import plain_or_gz
from workloads.recommender import shared
from workloads.recommender.params import Params
from workloads.recommender.predictor import Predictor
from workloads.recommender.workload import Recommender

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def table(folder: Path, name: str = "own.csv", least: int = 0) -> Path:
    """Write ratings from 1 to 5 of users u0 to u9; those of users u0 and u1 and items i0 and i1 are at most 3."""
    rng = np.random.default_rng(0)
    times = rng.permutation(120)
    lines = ["user,item,rating,timestamp"]
    for user in range(10):
        for item in range(12):
            rating = int(rng.integers(1, 4 if user < 2 or item < 2 else 6))
            if rating >= least:
                lines.append(f"u{user},i{item},{rating},{times[12 * user + item]}")
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def build(root: Path, **params: Any) -> Recommender:
    runtime = Runtime(device=torch.device("cpu"), data=root, seed=3, epochs=2)
    workload = Recommender(Params(**params), runtime)
    workload.train_epoch(1)
    return workload


def named(pairs: np.ndarray[Any, Any], data: Any) -> list[tuple[bytes, bytes]]:
    return sorted(zip(data.user_ids[pairs[:, 0]].tolist(), data.item_ids[pairs[:, 1]].tolist()))


@pytest.mark.parametrize("split", ["random", "clean", "leave_last_out", "global_time"])
def test_min_rating_gives_the_interactions_of_a_filtered_table(split: Any, cache: Path, tmp_path: Path) -> None:
    whole = load_interactions(str(table(tmp_path)), tmp_path, split, min_rating=4)
    filtered = load_interactions(str(table(tmp_path, "high.csv", least=4)), tmp_path, split)
    for part in ("train", "test"):
        assert named(getattr(whole, part), whole) == named(getattr(filtered, part), filtered)
    assert (whole.n_users, whole.n_items) == (10, 12)
    assert (filtered.n_users, filtered.n_items) == (8, 10)
    assert min(ratings.min() for ratings in (whole.train_ratings, whole.test_ratings) if ratings is not None) == 4


def test_users_without_positives_get_popular_items_and_no_evaluation(cache: Path, tmp_path: Path) -> None:
    """Items without positives remain candidates."""
    workload = build(tmp_path, dataset=str(table(tmp_path)), backbone="ials", dim=2, dataset_min_rating=4)
    data = workload.data
    assert (data.n_users, data.n_items) == (10, 12)
    assert data.seen.counts[:2].tolist() == [0, 0]
    assert data.popularity[:2].tolist() == [0, 0]
    assert {0, 1}.isdisjoint(workload.evaluate("test").units["id"].tolist())
    servable = workload.servable()
    model = Predictor({name: tensor.numpy() for name, tensor in servable.weights.items()}, dict(servable.config))
    rows = model.predict(pd.DataFrame({"user": ["u0", "u5"]}), k=12)
    assert rows[rows.user == "u0"].fallback.all()
    assert not rows[rows.user == "u5"].fallback.any()
    assert {"i0", "i1"} <= set(rows[rows.user == "u5"].item)


def test_another_min_rating_has_its_own_prepared_file_and_fingerprint(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "SHARED_FROM", 1)
    dataset = str(table(tmp_path))
    built = [
        build(tmp_path, dataset=dataset, backbone="popularity", dataset_min_rating=least) for least in (None, 3, 4, 4.0)
    ]
    assert len(list((cache / "prepared").glob("*.safetensors"))) == 3
    assert len({int(workload.data.popularity.sum()) for workload in built}) == 3
    specs = [
        ExperimentSpec(workload="recommender", params=workload.params.model_dump(mode="json")) for workload in built
    ]
    assert len({spec.fingerprint() for spec in specs}) == 3


def test_min_rating_that_leaves_no_validation_user_is_refused(cache: Path, tmp_path: Path) -> None:
    """Each user has two high ratings, too few for leave_last_out to put one into validation."""
    file = tmp_path / "own.csv"
    lines = [f"{user},{item},{5 if item > 2 else 1},{10 * item + user}" for user in range(4) for item in range(5)]
    file.write_text("\n".join(["user,item,rating,timestamp", *lines]) + "\n")
    given = {"dataset": str(file), "split": "leave_last_out"}
    Params(**given).check_data(tmp_path)
    with pytest.raises(DataError, match=r"leaves no user with an interaction before and one in the validation part"):
        Params(**given, dataset_min_rating=2).check_data(tmp_path)


def test_prior_file_may_name_items_without_positives(cache: Path, tmp_path: Path) -> None:
    prior = tmp_path / "prior.parquet"
    pd.DataFrame({"item": ["i0", "i5"], "p": [0.1, 0.2]}).to_parquet(prior)
    given = {"sampler": "bns", "bns_prior": "file", "prior_file": str(prior), "dataset_min_rating": 4}
    assert build(tmp_path, dataset=str(table(tmp_path)), **given).data.n_items == 12


@pytest.mark.data("ml-100k")
def test_movielens_with_min_rating_matches_the_filtered_csv_files() -> None:
    """Training data, evaluated users and test pairs are those with ratings of 4 and 5, as read by pandas."""
    root = Path(os.environ["ORCHESTRATOR_DATA"])
    workload = build(
        root, dataset="ml-100k", sampler="bns", bns_prior="occupation", dataset_min_rating=4, batch_size=4096
    )
    parts = [pd.read_csv(plain_or_gz(root / "ml-100k" / f"100k_{part}.csv")) for part in ("train", "test")]
    train, test = (part[part.rating >= 4] for part in parts)
    assert len(workload.data.seen.items) == len(train)
    assert workload.data.popularity.sum() + len(workload.data.validation.items) == len(train)
    assert workload.evaluate("test").units["id"].tolist() == sorted(test.user.unique())
    relevant = workload.data.test
    assert set(zip(relevant.users.tolist(), relevant.items.tolist())) == set(zip(test.user, test.item))
