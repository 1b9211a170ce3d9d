"""The synthetic interactions: sizes, truth, observed items, and that the planted signal can be learned."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workloads.data import Interactions, fingerprint, load_interactions
from workloads.data.interactions.synthetic import Planted, generate


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Interactions:
    return load_interactions("synthetic", tmp_path_factory.mktemp("nothing"))


def dense(data: Interactions, pairs: NDArray[np.int32]) -> NDArray[np.bool_]:
    matrix = np.zeros((data.n_users, data.n_items), np.bool_)
    matrix[pairs[:, 0], pairs[:, 1]] = True
    return matrix


def test_synthetic_dataset_matches_the_recorded_digest_and_fingerprint(data: Interactions, tmp_path: Path) -> None:
    """A changed digest means a different dataset: update ``version`` and both digests."""
    content = b"".join(array.tobytes() for array in data.arrays().values())
    assert hashlib.sha256(content).hexdigest() == "012798a75b2f569bc142221f9e21735d927fca970153d01adbd8e76e1ba4420a"
    assert fingerprint("synthetic", tmp_path) == "9f58ad56cc59c82eb46dbdf7f150ae85d3d6160f7499a10b431bdd0f9489ec07"


def test_synthetic_dataset_has_the_expected_sizes(data: Interactions) -> None:
    assert (data.n_users, data.n_items) == (600, 400)
    assert len(data.train) + len(data.test) == 20_669
    per_user = np.bincount(data.train[:, 0], minlength=600), np.bincount(data.test[:, 0], minlength=600)
    assert min(per_user[0]) >= 5
    assert min(per_user[1]) >= 1
    assert len(data.test) / 20_669 == pytest.approx(0.2, abs=0.005)


def test_observed_items_are_liked_and_some_liked_ones_are_not_observed(data: Interactions) -> None:
    assert data.truth is not None
    train, test = dense(data, data.train), dense(data, data.test)
    assert not (train & test).any()
    assert data.truth[train | test].all()
    assert 0.1 < data.truth[~train].mean() < 0.25  # the rate of false negatives among the unlabelled


def test_observed_share_of_likes_differs_between_items(data: Interactions) -> None:
    assert data.truth is not None
    observed = dense(data, data.train) | dense(data, data.test)
    seen = observed.sum(axis=0) / np.maximum(data.truth.sum(axis=0), 1)
    assert np.quantile(seen, 0.9) > 2.5 * np.quantile(seen, 0.1)


@given(st.integers(2, 30), st.integers(5, 40), st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_generated_pairs_are_distinct_and_liked_at_any_size_and_seed(n_users: int, n_items: int, seed: int) -> None:
    data = generate(Planted(n_users=n_users, n_items=n_items, rank=2, seed=seed))
    assert data.truth is not None
    assert data.truth.shape == (n_users, n_items)
    assert data.truth.any(axis=1).all()
    train, test = dense(data, data.train), dense(data, data.test)
    assert train.sum() == len(data.train)
    assert test.sum() == len(data.test)
    assert not (train & test).any()
    assert not ((train | test) & ~data.truth).any()


def ndcg_at_20(scores: NDArray[Any], train: NDArray[np.bool_], test: NDArray[np.bool_]) -> float:
    ranked = np.argsort(np.where(train, np.inf, -scores), axis=1, kind="stable")[:, :20]
    discount = 1 / np.log2(np.arange(2, 22))
    gain = (np.take_along_axis(test, ranked, axis=1) * discount).sum(axis=1)
    ideal = np.cumsum(discount)[np.minimum(test.sum(axis=1), 20) - 1]
    return float((gain / ideal).mean())


def fit_bpr(train: NDArray[np.bool_]) -> NDArray[Any]:
    """Matrix factorisation with the BPR loss and uniform negatives; scores of all pairs."""
    generator = torch.Generator().manual_seed(0)
    n_users, n_items = train.shape
    users = (0.1 * torch.randn(n_users, 16, generator=generator)).requires_grad_()
    items = (0.1 * torch.randn(n_items, 16, generator=generator)).requires_grad_()
    optimizer = torch.optim.Adam([users, items], lr=0.01)
    pairs, positive = torch.tensor(np.argwhere(train)), torch.tensor(train)
    for _ in range(15):
        for batch in torch.randperm(len(pairs), generator=generator).split(1024):
            user, item = pairs[batch].T
            negative = torch.randint(n_items, user.shape, generator=generator)
            while (hits := positive[user, negative]).any():
                negative[hits] = torch.randint(n_items, (int(hits.sum()),), generator=generator)
            margin = (users[user] * (items[item] - items[negative])).sum(dim=1)
            optimizer.zero_grad()
            torch.nn.functional.softplus(-margin).mean().backward()
            optimizer.step()
    return (users @ items.T).detach().numpy()


@pytest.mark.usefixtures("one_thread")
def test_the_planted_signal_can_be_learned(data: Interactions) -> None:
    train, test = dense(data, data.train), dense(data, data.test)
    popularity = ndcg_at_20(np.broadcast_to(train.sum(axis=0), train.shape), train, test)
    factorised = ndcg_at_20(fit_bpr(train), train, test)
    assert popularity > 0.08  # the popularity is skewed: a random order has 0.04
    assert factorised > 2 * popularity
