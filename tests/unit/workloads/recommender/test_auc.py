"""The AUC from which BCL computes α: exact for few pairs, sampled and close to the evaluation's for many."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from workloads.data import load_interactions
from workloads.recommender import evaluation as module
from workloads.recommender.dataset import RecommenderData, prepare
from workloads.recommender.evaluation import evaluation, mean_auc, rank_users
from workloads.recommender.scorers import Factors

CPU = torch.device("cpu")


def tables(data: RecommenderData, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A model that is better than random: popular items have higher scores."""
    source = torch.Generator().manual_seed(seed)
    users, items = (torch.randn(n, 8, generator=source) for n in (data.n_users, data.n_items))
    users[:, 0], items[:, 0] = 1, data.popularity.float().sqrt()
    return users, items


@pytest.fixture(scope="module")
def data() -> RecommenderData:
    return prepare(load_interactions("synthetic", Path()), 0, True, CPU)


def by_all_metrics(model: tuple[torch.Tensor, torch.Tensor], data: RecommenderData) -> float:
    values, lists = rank_users([Factors(*model)], data.validation, data.train)
    return evaluation(values[0], lists[0], data.validation, data.popularity).metrics["auc"]


def test_auc_of_few_pairs_equals_the_auc_of_the_evaluation(data: RecommenderData) -> None:
    model = tables(data)
    assert mean_auc(*model, data.validation, data.train, data.unknown, 1) == by_all_metrics(model, data)


@pytest.mark.parametrize("user", [3, slice(None)])
def test_a_user_whose_scores_are_nan_is_not_left_out_of_the_mean(data: RecommenderData, user: int | slice) -> None:
    users, items = tables(data)
    users[user] = torch.nan
    values, lists = rank_users([Factors(users, items)], data.validation, data.train)
    metrics = evaluation(values[0], lists[0], data.validation, data.popularity).metrics
    assert all(map(math.isnan, metrics.values()))


def test_sampled_auc_of_many_pairs_is_close_and_depends_on_the_key(
    data: RecommenderData, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tables(data)
    monkeypatch.setattr(module, "COMPARED", 0)
    found = [mean_auc(*model, data.validation, data.train, data.unknown, key) for key in (1, 1, 2, 3)]
    assert found == pytest.approx([by_all_metrics(model, data)] * 4, abs=0.002)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_auc_with_many_items_is_estimated_from_a_sample_of_items(
    data: RecommenderData, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tables(data)
    exact = by_all_metrics(model, data)
    monkeypatch.setattr(module, "SAMPLED_FROM", data.n_items - 1)
    for items, error in ((2**6, 0.07), (2**16, 1e-6)):  # 2**16 draws include every item
        monkeypatch.setattr(module, "AUC_ITEMS", items)
        assert by_all_metrics(model, data) == pytest.approx(exact, abs=error)
    assert by_all_metrics((torch.ones(data.n_users, 4), torch.ones(data.n_items, 4)), data) == 0.5


def test_auc_of_equal_scores_is_one_half(data: RecommenderData, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.ones(data.n_users, 4), torch.ones(data.n_items, 4)
    for compared in (module.COMPARED, 0):
        monkeypatch.setattr(module, "COMPARED", compared)
        assert mean_auc(*model, data.validation, data.train, data.unknown, 1) == 0.5


def test_auc_without_relevant_items_raises_value_error() -> None:
    data = prepare(load_interactions("synthetic", Path()), 0, False, CPU)
    with pytest.raises(ValueError, match="nothing can be measured"):
        mean_auc(*tables(data), data.validation, data.train, data.unknown, 1)


@pytest.mark.parametrize("holdout", [True, False])
def test_number_of_unknown_items_is_all_items_minus_seen_items(holdout: bool) -> None:
    data = prepare(load_interactions("synthetic", Path()), 0, holdout, CPU)
    expected = data.n_items - torch.bincount(data.seen.users, minlength=data.n_users)
    assert torch.equal(data.unknown.counts, expected)
