"""The batches of an epoch: complete, with true negatives, one stream for all ranks and virtual epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workloads.contract import Runtime
from workloads.data import Interactions
from workloads.recommender import batches as stream
from workloads.recommender.batches import Batch, Draws, batches
from workloads.recommender.dataset import RecommenderData, prepare
from workloads.sampling.dynamic import DNS
from workloads.sampling.sampler import Uniform
from workloads.sampling.srns import SRNS

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)


def toy(n_users: int = 12, n_items: int = 9, share: float = 0.5) -> Interactions:
    """Random interactions; user 0 has all items, user 1 none."""
    rng = np.random.default_rng(0)
    seen = rng.random((n_users, n_items)) < share
    seen[0], seen[1] = True, False
    pairs = np.argwhere(seen).astype(np.int32)
    test = rng.random(len(pairs)) < 0.2
    test[pairs[:, 0] == 0] = False
    return Interactions(n_users, n_items, pairs[~test], pairs[test])


def collect(data: RecommenderData, batch_size: int, epoch: int, **runtime: Any) -> tuple[list[torch.Tensor], list[int]]:
    drawn = list(batches(data, Draws(Uniform(data.unobserved)), batch_size, replace(RUNTIME, **runtime), epoch))
    return [batch.nodes for batch in drawn], [batch.size for batch in drawn]


def test_an_epoch_visits_each_interaction_once_with_a_true_negative() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    parts, sizes = collect(data, 7, 1)
    assert sizes == [part.shape[1] for part in parts]
    users, items, negatives = torch.cat(parts, dim=1).tolist()
    train = {(u, i) for u, i in zip(data.train.users.tolist(), data.train.items.tolist())}
    assert sorted(zip(users, (i - data.n_users for i in items))) == sorted(train)
    assert all(data.n_users <= negative < data.n_users + data.n_items for negative in negatives)
    assert all((user, negative - data.n_users) not in train for user, negative in zip(users, negatives))
    assert not torch.equal(torch.cat(collect(data, 7, 2)[0], dim=1), torch.cat(parts, dim=1))


def test_user_with_all_items_is_left_out_of_the_training_pairs() -> None:
    data = prepare(toy(), 0, False, RUNTIME.device)
    assert data.train.counts[0] == data.n_items
    assert 0 not in data.pairs[0]
    assert 2 in data.pairs[0]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("at_once", [1, 14, 2**20])
def test_nodes_of_the_ranks_concatenate_to_the_batch(
    world_size: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    whole, sizes = collect(data, 6, 1)
    monkeypatch.setattr(stream, "_AT_ONCE", {"cpu": at_once})
    ranks = [collect(data, 6, 1, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(found == sizes for _, found in ranks)
    for batch, *parts in zip(whole, *(parts for parts, _ in ranks)):
        assert torch.equal(torch.cat(parts, dim=1), batch)
        assert max(part.shape[1] for part in parts) - min(part.shape[1] for part in parts) <= 1


def test_virtual_epochs_continue_the_batches_of_whole_passes() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    passes = [part for epoch in (1, 2, 3) for part in collect(data, 7, epoch)[0]]
    cut = [part for epoch in range(1, 6) for part in collect(data, 7, epoch, steps_per_epoch=4)[0]]
    assert len(collect(data, 7, 1)[0]) not in (2, 4)  # virtual epochs cross the ends of passes
    assert all(torch.equal(one, other) for one, other in zip(passes, cut, strict=False))


def wide(data: RecommenderData, negatives: int, extras: int, of_item: bool = False, **runtime: Any) -> list[Batch]:
    draws = Draws(Uniform(data.unobserved), negatives, extras, of_item)
    return list(batches(data, draws, 7, replace(RUNTIME, **runtime), 1))


def test_extras_are_other_items_of_the_user_and_negatives_are_unobserved() -> None:
    """Extras are the user's items without the positive, or the positive if it is the only one (E-5.17)."""
    data = prepare(toy(), 0, True, RUNTIME.device)
    nodes = torch.cat([batch.nodes for batch in wide(data, 3, 40)], dim=1)
    train = {(u, i + data.n_users) for u, i in zip(data.train.users.tolist(), data.train.items.tolist())}
    owned = {user: {i for u, i in train if u == user} for user in range(data.n_users)}
    seen = set()
    for user, item, *others in nodes.T.tolist():
        extras, negatives = others[:40], others[40:]
        assert set(extras) <= (owned[user] - {item} or {item})
        assert not owned[user] & set(negatives)
        seen |= {(user, item, extra) for extra in extras}
    expected = {(u, i, j) for u, i in train if u in nodes[0] for j in (owned[u] - {i} or {i})}
    assert len(seen) > 0.95 * len(expected)  # nearly every possible extra is drawn


def test_extras_of_an_item_are_its_other_users() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    nodes = torch.cat([batch.nodes for batch in wide(data, 1, 2, of_item=True)], dim=1)
    train = {(u, i + data.n_users) for u, i in zip(data.train.users.tolist(), data.train.items.tolist())}
    for user, item, *others in nodes[:4].T.tolist():
        takers = {u for u, i in train if i == item}
        assert set(others) <= (takers - {user} or {user})


@pytest.mark.parametrize("world_size", [2, 3])
def test_nodes_rows_and_positions_of_ranks_concatenate_to_the_batch(world_size: int) -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    whole = wide(data, 3, 2)
    ranks = [wide(data, 3, 2, rank=rank, world_size=world_size) for rank in range(world_size)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        for name in ("nodes", "rows", "positions"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts], -1), getattr(batch, name))
        assert all(torch.equal(part.items, batch.items) and part.step == batch.step for part in parts)
        assert torch.equal(batch.items, batch.nodes[1])
        assert torch.equal(data.pairs[:, batch.rows], batch.nodes[:2])


def test_micro_batches_concatenate_to_the_batch() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    for batch in wide(data, 2, 1):
        parts = batch.split(3)
        for name in ("nodes", "rows", "positions"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts], -1), getattr(batch, name))
        assert all(part.size == batch.size for part in parts)


def test_a_sampler_that_draws_once_has_one_pool_for_all_negatives() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    sampler = SRNS(data.unobserved, memory=2, pool=3, alpha=1.0, warmup=1, temperature=1.0)
    one, several = (
        torch.cat([batch.nodes for batch in batches(data, Draws(sampler, negatives), 7, RUNTIME, 1)], 1)
        for negatives in (1, 4)
    )
    assert torch.equal(one, several)
    assert len(one) == 2 + 3
    table, n = torch.randn(data.n_users + data.n_items, 4), data.n_users
    sampler.begin(table, 1, 5)
    draws = Draws(sampler, 4)
    for batch in batches(data, draws, 7, RUNTIME, 1):
        chosen = stream.choice(draws, batch, 1, n)
        assert chosen is not None
        nodes = chosen(table, batch.nodes)
        assert nodes.shape == (2 + 4, batch.nodes.shape[1])
        assert not data.unobserved.observed.contains(nodes[0], nodes[2:] - n).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["scored as on a CPU", "scored as on a GPU"])
def test_nothing_is_chosen_for_an_empty_part_of_a_batch(dtype: torch.dtype) -> None:
    """The last batch has fewer interactions than ranks and micro-batches."""
    data = prepare(toy(), 0, True, RUNTIME.device)
    table = torch.randn(data.n_users + data.n_items, 4, dtype=dtype)
    srns = SRNS(data.unobserved, memory=2, pool=3, alpha=1.0, warmup=1, temperature=1.0)
    for sampler in (DNS(data.unobserved, 3), srns):
        sampler.begin(table, 1, 5)
        draws = Draws(sampler, 2)
        (batch, *_) = batches(data, draws, 2, RUNTIME, 1)
        empty = batch.split(3)[-1]
        chosen = stream.choice(draws, empty, 1, data.n_users)
        assert chosen is not None
        assert chosen(table, empty.nodes).shape == (2 + 2, 0)
