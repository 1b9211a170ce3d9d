"""Packs of matrix factorisations: results equal separate training for any batch size, split and optimiser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workloads.contract import Pack, Packable, Runtime
from workloads.data import load_interactions
from workloads.recommender import batches as stream
from workloads.recommender import evaluation, packed
from workloads.recommender.adam import Adam, StackedAdam
from workloads.recommender.batches import Draws, batches, packed_nodes
from workloads.recommender.dataset import prepare
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender
from workloads.sampling.sampler import Uniform

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")
RUNTIME = Runtime(device=CPU, data=Path(), seed=3, epochs=2)


def members(count: int, **params: Any) -> list[Recommender]:
    """Workloads that differ in learning rate, weight decay and seed."""
    return [
        Recommender(Params(lr=0.002 * (1 + k), weight_decay=1e-3 * k, **params), replace(RUNTIME, seed=k))
        for k in range(count)
    ]


def train(pack: Pack, apart: list[Recommender], epochs: int) -> tuple[list[Any], list[Any]]:
    together = [pack.train_epoch([epoch] * len(apart)) for epoch in range(1, epochs + 1)]
    return together, [[member.train_epoch(epoch) for member in apart] for epoch in range(1, epochs + 1)]


def test_recommender_is_packable() -> None:
    assert issubclass(Recommender, Packable)
    assert isinstance(members(1)[0], Packable)


@pytest.mark.parametrize(
    ("batch_size", "choice"),
    [
        (1024, {}),
        (1000, {}),
        (77, {}),
        (20_000, {}),
        (1000, {"loss": "bce"}),
        (1000, {"loss": "denoise_reweighted", "sampler": "popularity"}),
    ],
)
def test_packed_training_equals_separate_training_bitwise(batch_size: int, choice: dict[str, Any]) -> None:
    apart, together = (members(3, batch_size=batch_size, dim=8, **choice) for _ in range(2))
    found, expected = train(Recommender.pack(together), apart, 2)
    assert found == expected
    for one, other in zip(apart, together):
        assert torch.equal(one.model.embedding, other.model.embedding)


def test_number_of_pack_members_per_step_is_limited_by_the_cache_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps train two, two and one member; the results equal those of separate training."""
    apart, together = (members(5, batch_size=4096, dim=8) for _ in range(2))
    monkeypatch.setattr(packed, "_GATHERED", {"cpu": 2 * 4096 * 8})
    shared: list[int] = []
    trained = packed.RecommenderPack._train
    monkeypatch.setattr(
        packed.RecommenderPack,
        "_train",
        lambda pack, part, epochs: shared.append(len(epochs)) or trained(pack, part, epochs),
    )
    found, expected = train(Recommender.pack(together), apart, 1)
    assert found == expected
    assert shared == [2, 2, 1]


@pytest.mark.parametrize("at_once", [1, 2**20])
def test_pack_member_draws_the_same_batches_as_in_separate_training(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_AT_ONCE", {"cpu": at_once})
    data, passes = prepare(load_interactions("synthetic", Path()), 0, True, CPU), [(5, 1), (6, 1), (5, 4)]
    draws = Draws(Uniform(data.unobserved))
    side_by_side = list(packed_nodes(data, draws, 1000, passes))
    for k, (seed, epoch) in enumerate(passes):
        own = batches(data, draws, 1000, replace(RUNTIME, seed=seed), epoch)
        for nodes, batch in zip(side_by_side, own, strict=True):
            assert torch.equal(nodes[:, k], batch.nodes)


def test_stacked_adam_matches_separate_optimisers() -> None:
    """The members differ in learning rate, weight decay and number of steps."""
    source = torch.Generator().manual_seed(0)
    tables = torch.randn(3, 7, 4, generator=source)
    rates, decays = [0.1, 0.01, 0.001], [0.0, 0.1, 0.01]
    apart = [Adam(torch.nn.Parameter(table.clone()), decay) for table, decay in zip(tables, decays)]
    for _ in range(3):  # the first has more steps
        apart[0].parameter.grad = torch.randn(7, 4, generator=source)
        apart[0].update(0.1)
    own = [(optimizer.parameter.detach(), *optimizer.state_dict().values()) for optimizer in apart]
    stack = [torch.stack(tensors) for tensors in zip(*own)]
    together = StackedAdam(stack, rates, decays, steps=4)
    for _ in range(4):
        gradient = torch.randn(3, 7, 4, generator=source)
        for optimizer, rate, row in zip(apart, rates, gradient.clone()):
            optimizer.parameter.grad = row
            optimizer.update(rate)
        together.update(gradient)
    for k, optimizer in enumerate(apart):
        for found, expected in zip(stack, (optimizer.parameter, *optimizer.state_dict().values()), strict=True):
            torch.testing.assert_close(found[k], expected.detach(), rtol=1e-5, atol=1e-6)


def test_pack_with_stacked_adam_matches_separate_training_within_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, together = (members(3, batch_size=1024, dim=8) for _ in range(2))
    monkeypatch.setattr(packed, "_FUSED", set[str]())
    found, expected = train(Recommender.pack(together), apart, 2)
    for one, other in zip(found, expected):
        assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in other], rel=1e-6)
    for one, other in zip(apart, together):
        torch.testing.assert_close(one.model.embedding, other.model.embedding, rtol=0, atol=1e-5)
        assert torch.equal(one.optimizer.step, other.optimizer.step)


@pytest.mark.parametrize(("split", "params"), [("validation", {}), ("test", {}), ("validation", {"eval_users": 100})])
def test_pack_evaluation_matches_separate_evaluation(
    split: Any, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = members(5, dim=8, batch_size=4096, **params)
    pack = Recommender.pack(trained)
    pack.train_epoch([1] * 5)
    alone = [member.evaluate(split) for member in trained]
    monkeypatch.setattr(evaluation, "_SCORES", {"cpu": 2 * trained[0].data.n_users * trained[0].data.n_items})
    places = [4, 0, 2]
    for place, found in zip(places, pack.evaluate(places, split), strict=True):
        assert found.metrics == pytest.approx(alone[place].metrics, rel=1e-6)
        assert list(found.units) == list(alone[place].units)
        for name, column in alone[place].units.items():
            np.testing.assert_allclose(found.units[name], column, rtol=1e-6)


def test_pack_shape_differs_or_is_none_for_settings_not_packed_together() -> None:
    usual = members(1)[0].pack_shape()
    assert usual is not None
    for params in ({"dim": 8}, {"batch_size": 512}, {"split_seed": 1}, {"eval_users": 9}):
        assert members(1, **params)[0].pack_shape() not in (usual, None)
    assert Recommender(Params(), replace(RUNTIME, holdout=False)).pack_shape() not in (usual, None)
    for apart in ({"backbone": "lightgcn"}, {"loss": "dpl"}, {"loss": "bprac"}, {"sampler": "dns"}, {"quality": True}):
        assert Recommender(Params(**apart), RUNTIME).pack_shape() is None
    for runtime in (replace(RUNTIME, steps_per_epoch=3), replace(RUNTIME, accumulate=2)):
        assert Recommender(Params(), runtime).pack_shape() is None


def test_pack_size_falls_with_the_size_of_a_step() -> None:
    assert Recommender.pack_size(Params(batch_size=256, dim=16), CPU) > 1
    assert Recommender.pack_size(Params(batch_size=4096, dim=64), CPU) == 1
    assert Recommender.pack_size(Params(backbone="lightgcn"), torch.device("cuda")) == 1
    sizes = [Recommender.pack_size(Params(dim=dim), torch.device("cuda")) for dim in (32, 1024, 4096)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1


def test_state_of_a_pack_member_resumes_in_separate_training() -> None:
    together = members(2, dim=8)
    Recommender.pack(together).train_epoch([1, 1])
    resumed = members(2, dim=8)
    for one, other in zip(together, resumed):
        other.load_state_dict(one.state_dict())
    assert [one.train_epoch(2) for one in resumed] == Recommender.pack(together).train_epoch([2, 2])
