"""The compiled ranking loop gives exactly the values of the ranking with tensors."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from workloads.recommender import evaluation
from workloads.recommender.dataset import History
from workloads.recommender.evaluation import rank_users

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")

USERS = 37


class Table:
    """A scorer with a table of scores."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.shape = (values.shape[0], values.shape[1])

    def scores(self, first: int, last: int) -> torch.Tensor:
        return self.values[first:last]


def history(density: float, n_items: int, seed: int) -> History:
    """Items of each user drawn at random. User 0 has none, user 1 all."""
    chosen = np.random.default_rng(seed).random((USERS, n_items)) < density
    chosen[:2] = [[False], [True]]
    return History.of(np.argwhere(chosen), USERS, torch.device("cpu"))


def distinct(n_items: int) -> torch.Tensor:
    return torch.randn(USERS, n_items, generator=torch.Generator().manual_seed(n_items))


def with_ties(n_items: int) -> torch.Tensor:
    values = (2 * distinct(n_items)).round()
    values[values == 0] = -0.0
    values[::2][values[::2] == 0] = 0.0
    return values


def with_infinities(n_items: int) -> torch.Tensor:
    values = distinct(n_items)
    values[:, ::7] = torch.inf
    values[5, 3:] = -torch.inf
    return values


def with_nan(n_items: int) -> torch.Tensor:
    values = distinct(n_items)
    values[::3, 3] = torch.nan
    values[4] = torch.nan
    return values


@pytest.mark.parametrize("table", [distinct, with_ties, with_infinities, with_nan])
@pytest.mark.parametrize(("n_items", "rows"), [(20, 37), (21, 5), (300, 8)])
@pytest.mark.parametrize("excluded", [0.0, 0.3])
def test_compiled_lists_and_metrics_equal_those_of_the_tensor_path(
    table: object, n_items: int, rows: int, excluded: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(evaluation._SCORES, "cpu", rows * n_items)
    models = [Table(make(n_items)) for make in (table, distinct)]  # type: ignore[operator]
    wanted = history(0.1, n_items, seed=1)
    known = history(excluded, n_items, seed=2)
    before = models[0].values.clone()
    values, lists = rank_users(models, wanted, known)
    monkeypatch.setattr(evaluation, "COMPILED_FROM", 0)
    monkeypatch.setattr(evaluation, "_blocks", None)
    compiled_values, compiled_lists = rank_users(models, wanted, known)
    torch.testing.assert_close(compiled_values, values, rtol=0, atol=0, equal_nan=True)
    ordered = ~values[:, :, 0].isnan()
    assert torch.equal(compiled_lists[ordered], lists[ordered])
    assert ordered.all() != (table is with_nan)
    torch.testing.assert_close(models[0].values, before, rtol=0, atol=0, equal_nan=True)


def test_rankings_of_two_ranks_sum_to_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluation._SCORES, "cpu", 5 * 300)
    monkeypatch.setattr(evaluation, "COMPILED_FROM", 0)
    args = [Table(distinct(300))], history(0.1, 300, seed=1), history(0.3, 300, seed=2)
    values, lists = rank_users(*args)
    shares = [rank_users(*args, rank, 2) for rank in range(2)]
    torch.testing.assert_close(sum(share[0] for share in shares), values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(sum(share[1] for share in shares), lists)


@pytest.mark.parametrize(("evaluations", "compiled"), [(1, False), (10**6, True)])
def test_compiled_ranking_is_used_only_for_many_evaluations(
    evaluations: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def note(name: str) -> object:
        return lambda *args: used.append(name) or iter(())

    monkeypatch.setattr(evaluation, "_blocks", note("tensors"))
    monkeypatch.setattr(evaluation, "_compiled_blocks", note("compiled"))
    rank_users([Table(distinct(300))], history(0.1, 300, 1), history(0.3, 300, 2), evaluations=evaluations)
    assert used == ["compiled" if compiled else "tensors"]
