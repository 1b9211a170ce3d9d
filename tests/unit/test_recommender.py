"""The recommender: parameters, models, the triples of an epoch, evaluation, and two processes against one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pydantic import ValidationError

from workloads import distributed
from workloads.contract import Runtime
from workloads.data import Interactions, load_interactions
from workloads.data.splits import hold_out
from workloads.losses.pairwise import PAIRWISE
from workloads.recommender import params as names
from workloads.recommender import triples as stream
from workloads.recommender.adam import Adam
from workloads.recommender.model import LightGCN, MatrixFactorisation, normalised_graph, xavier
from workloads.recommender.params import Params
from workloads.recommender.prepared import Prepared, prepare
from workloads.recommender.triples import triples
from workloads.recommender.workload import Recommender
from workloads.sampling.negatives import SAMPLERS

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(runtime: Runtime = RUNTIME, **params: Any) -> Recommender:
    return Recommender(Params(**params), runtime)


def toy(n_users: int = 12, n_items: int = 9, share: float = 0.5) -> Interactions:
    """Some users with everything, some with nothing."""
    rng = np.random.default_rng(0)
    seen = rng.random((n_users, n_items)) < share
    seen[0], seen[1] = True, False
    pairs = np.argwhere(seen).astype(np.int32)
    test = rng.random(len(pairs)) < 0.2
    test[pairs[:, 0] == 0] = False
    return Interactions(n_users, n_items, pairs[~test], pairs[test])


# Parameters


def test_names_have_their_functions() -> None:
    assert set(get_args(names.Loss)) == set(PAIRWISE)
    assert set(get_args(names.Sampler)) == set(SAMPLERS)


def test_every_parameter_is_described() -> None:
    assert all(field.description for field in Params.model_fields.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": 2}, "layers=2 has no effect with backbone=mf"),
        ({"lr_decay_every": 5}, "lr_decay_every=5 has no effect with lr_decay=1"),
        ({"lr": 0}, "greater than 0"),
        ({"lr": float("nan")}, "finite number"),
        ({"dim": 0}, "greater than or equal to 1"),
        ({"loss": "brp"}, "'bpr'"),
        ({"learning_rate": 0.1}, "not permitted"),
    ],
)
def test_parameters_that_can_not_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_all_values_of_a_run_can_be_given_again() -> None:
    for params in (Params(), Params(backbone="lightgcn", layers=3, lr_decay=0.1, lr_decay_every=7)):
        assert Params(**params.model_dump()) == params


def test_parameters_import_nothing_heavy() -> None:
    command = (
        "import sys, workloads.recommender.params;"
        "print([m for m in ('torch', 'numpy', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# Models


def dense_propagation(seen: np.ndarray[Any, Any], embedding: np.ndarray[Any, Any], layers: int) -> Any:
    """LightGCN in float64 with full matrices, and the matrix that maps E^(0) to E."""
    n_users, n_items = seen.shape
    adjacency = np.block([[np.zeros((n_users, n_users)), seen], [seen.T, np.zeros((n_items, n_items))]])
    degrees = adjacency.sum(1)
    scale = np.where(degrees > 0, degrees, np.inf) ** -0.5
    step = scale[:, None] * adjacency * scale
    mean = sum(np.linalg.matrix_power(step, layer) for layer in range(layers + 1)) / (layers + 1)
    return mean @ embedding, mean


@pytest.mark.parametrize("layers", [1, 3])
def test_lightgcn_is_the_dense_formula(layers: int) -> None:
    rng = np.random.default_rng(layers)
    seen = rng.random((7, 5)) < 0.4
    seen[2], seen[:, 3] = False, False
    users, items = (torch.from_numpy(side) for side in np.nonzero(seen))
    initial = torch.from_numpy(rng.normal(size=(12, 4)).astype(np.float32))
    model = LightGCN(initial.clone(), normalised_graph(users, items + 7, 12), layers)
    expected, mean = dense_propagation(seen.astype(float), initial.double().numpy(), layers)
    np.testing.assert_allclose(model.embeddings().detach(), expected, atol=1e-6)
    np.testing.assert_allclose(model.embeddings()[2].detach(), initial[2] / (layers + 1), atol=1e-6)

    # The gradient with respect to E^(0) is the transposed map of the one with respect to E.
    outer = torch.from_numpy(rng.normal(size=(12, 4)).astype(np.float32))
    (model.embeddings() * outer).sum().backward()
    np.testing.assert_allclose(model.embedding.grad, mean.T @ outer.double().numpy(), atol=1e-6)


def test_scores_are_inner_products() -> None:
    model = MatrixFactorisation(torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    nodes = torch.tensor([[0, 1, 1, 3], [4, 5, 5, 8], [8, 4, 4, 4]])
    positive, negative = model(nodes)
    rows = model.embedding.tolist()
    for column, (user, item, other) in enumerate(nodes.T.tolist()):
        assert positive[column].item() == pytest.approx(sum(a * b for a, b in zip(rows[user], rows[item])))
        assert negative[column].item() == pytest.approx(sum(a * b for a, b in zip(rows[user], rows[other])))
    assert torch.autograd.gradcheck(
        lambda table: torch.func.functional_call(model, {"embedding": table}, (nodes,)), model.embedding
    )


def test_tables_start_glorot_normal() -> None:
    table = xavier(3000, 1000, 64, seed=1)
    assert table[:3000].std().item() == pytest.approx((2 / 3064) ** 0.5, rel=0.02)
    assert table[3000:].std().item() == pytest.approx((2 / 1064) ** 0.5, rel=0.02)


def test_adam_is_torch_adam() -> None:
    source = torch.Generator().manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(20, 3, generator=source))
    theirs = torch.nn.Parameter(ours.detach().clone())
    adam, reference = Adam(ours, 0.01), torch.optim.Adam([theirs], weight_decay=0.01, fused=True)
    for lr in (0.1, 0.1, 0.03, 0.01):
        gradient = torch.randn(20, 3, generator=source)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        adam.update(lr)
        reference.param_groups[0]["lr"] = lr
        reference.step()
    assert torch.equal(ours, theirs)
    assert ours.grad is None


# The triples of an epoch


def collect(data: Prepared, batch_size: int, epoch: int, **runtime: Any) -> tuple[list[torch.Tensor], list[int]]:
    drawn = list(triples(data, SAMPLERS["uniform"], batch_size, replace(RUNTIME, **runtime), epoch))
    return [nodes for nodes, _ in drawn], [size for _, size in drawn]


def test_an_epoch_visits_each_interaction_once_with_a_true_negative() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    parts, sizes = collect(data, 7, 1)
    assert sizes == [part.shape[1] for part in parts]
    users, items, negatives = torch.cat(parts, dim=1).tolist()
    train = {(u, i) for u, i in zip(data.train.users.tolist(), data.train.items.tolist())}
    assert sorted(zip(users, (i - data.n_users for i in items))) == sorted(train)
    assert all((user, negative - data.n_users) not in train for user, negative in zip(users, negatives))
    assert not torch.equal(torch.cat(collect(data, 7, 2)[0], dim=1), torch.cat(parts, dim=1))


def test_a_user_who_has_everything_has_no_triple() -> None:
    data = prepare(toy(), 0, False, RUNTIME.device)
    assert data.train.counts[0] == data.n_items
    assert 0 not in data.pairs[0]
    assert 2 in data.pairs[0]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("at_once", [1, 14, 2**20])
def test_ranks_share_one_stream(world_size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    whole, sizes = collect(data, 6, 1)
    monkeypatch.setattr(stream, "_AT_ONCE", at_once)
    ranks = [collect(data, 6, 1, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(found == sizes for _, found in ranks)
    for batch, *parts in zip(whole, *(parts for parts, _ in ranks)):
        assert torch.equal(torch.cat(parts, dim=1), batch)
        assert max(part.shape[1] for part in parts) - min(part.shape[1] for part in parts) <= 1


def test_virtual_epochs_cut_the_passes() -> None:
    data = prepare(toy(), 0, True, RUNTIME.device)
    passes = [part for epoch in (1, 2, 3) for part in collect(data, 7, epoch)[0]]
    cut = [part for epoch in range(1, 6) for part in collect(data, 7, epoch, steps_per_epoch=4)[0]]
    assert len(collect(data, 7, 1)[0]) not in (2, 4)  # so that virtual epochs do cross passes
    assert all(torch.equal(one, other) for one, other in zip(passes, cut, strict=False))


# Training and evaluation


def slow_ndcg(scores: np.ndarray[Any, Any], excluded: set[int], relevant: set[int], k: int) -> float:
    candidates = [item for item in np.argsort(-scores, kind="stable").tolist() if item not in excluded]
    gains = [1 / np.log2(rank + 2) for rank, item in enumerate(candidates[:k]) if item in relevant]
    return float(sum(gains) / sum(1 / np.log2(rank + 2) for rank in range(min(k, len(relevant)))))


def by_user(pairs: np.ndarray[Any, Any], n_users: int) -> list[set[int]]:
    items: list[set[int]] = [set() for _ in range(n_users)]
    for user, item in pairs.tolist():
        items[user].add(item)
    return items


@pytest.mark.parametrize("backbone", ["mf", "lightgcn"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_by_hand(split: Any, backbone: Any) -> None:
    workload = build(backbone=backbone, batch_size=512)
    workload.train_epoch(1)
    data = load_interactions("synthetic", Path())
    held = hold_out(data.train, data.n_users, 0.1, 0)
    train, validation = by_user(data.train[~held], data.n_users), by_user(data.train[held], data.n_users)
    test = by_user(data.test, data.n_users)
    table = workload.model.embeddings().detach().numpy()
    scores = table[: data.n_users] @ table[data.n_users :].T
    relevant = validation if split == "validation" else test
    excluded = train if split == "validation" else [a | b for a, b in zip(train, validation)]
    expected = {u: slow_ndcg(scores[u], excluded[u], relevant[u], 20) for u in range(data.n_users) if relevant[u]}
    found = workload.evaluate(split)
    assert found.units["id"].tolist() == list(expected)
    np.testing.assert_allclose(found.units["ndcg_at_20"], list(expected.values()), atol=1e-6)
    assert found.metrics["ndcg_at_20"] == pytest.approx(np.mean(list(expected.values())), abs=1e-6)


@pytest.mark.parametrize("backbone", ["mf", "lightgcn"])
def test_training_beats_popularity_on_planted_preferences(backbone: Any) -> None:
    data = load_interactions("synthetic", Path())
    popularity = np.bincount(data.train[:, 1], minlength=data.n_items)
    seen, wanted = by_user(data.train, data.n_users), by_user(data.test, data.n_users)
    baseline = np.mean([slow_ndcg(popularity, s, w, 20) for s, w in zip(seen, wanted) if w])
    workload = build(replace(RUNTIME, holdout=False), backbone=backbone, batch_size=512, lr=0.01)
    losses = [workload.train_epoch(epoch)["loss"] for epoch in range(1, 21)]
    assert losses[-1] < losses[0]
    assert workload.evaluate("test").metrics["ndcg_at_20"] > 1.3 * baseline


def test_a_refit_trains_on_the_validation_part_and_can_not_be_validated() -> None:
    held_out, refit = build(), build(replace(RUNTIME, holdout=False))
    total = len(load_interactions("synthetic", Path()).train)
    assert refit.data.pairs.shape[1] == total
    assert held_out.data.pairs.shape[1] + held_out.data.validation.counts.sum() == total
    assert refit.evaluate("test").units["id"].tolist() == held_out.evaluate("test").units["id"].tolist()
    with pytest.raises(ValueError, match="a refit has no validation split"):
        refit.evaluate("validation")


def test_the_learning_rate_decays_with_the_epoch() -> None:
    """Adam's first step moves a parameter by the learning rate."""
    for epoch, lr in ((1, 0.01), (3, 0.01), (4, 0.001), (7, 0.0001)):
        workload = build(replace(RUNTIME, steps_per_epoch=1), lr=0.01, lr_decay=0.1, lr_decay_every=3, weight_decay=0)
        before = workload.model.embedding.detach().clone()
        workload.train_epoch(epoch)
        moved = (workload.model.embedding.detach() - before).abs().max().item()
        assert moved == pytest.approx(lr, rel=0.01)


def test_micro_batches_give_the_gradient_of_the_batch() -> None:
    whole, parts = build(batch_size=4096), build(replace(RUNTIME, accumulate=3), batch_size=4096)
    assert whole.train_epoch(1)["loss"] == pytest.approx(parts.train_epoch(1)["loss"], rel=1e-6)
    torch.testing.assert_close(whole.model.embedding, parts.model.embedding, rtol=0, atol=1e-5)


def test_bf16_propagation_is_close_to_fp32() -> None:
    exact, rounded = (
        build(replace(RUNTIME, precision=precision), backbone="lightgcn", lr=0.01) for precision in ("fp32", "bf16")
    )
    start = (exact.model.embeddings() - rounded.model.embeddings()).detach().abs().max()
    assert 0 < start.item() < 1e-3
    losses = [workload.train_epoch(1)["loss"] for workload in (exact, rounded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert rounded.model.embedding.dtype == rounded.model.embeddings().dtype == torch.float32


def test_a_process_prepares_the_data_once() -> None:
    first, second = build(), build(backbone="lightgcn", lr=0.1)
    assert first.data is second.data
    assert build(split_seed=1).data is not first.data


def test_a_batch_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match=r"batch_size=1000 .* over 3 workers; the nearest that does is 999"):
        build(replace(RUNTIME, world_size=3), batch_size=1000)
    with pytest.raises(ValueError, match="the nearest that does is 4"):
        build(replace(RUNTIME, world_size=4), batch_size=1)


def test_a_state_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"shape \(1000, 8\).* with dim=16 has \(1000, 16\)"):
        build(dim=16).load_state_dict(build(dim=8).state_dict())
    with pytest.raises(ValueError, match="the checkpoint does not fit"):
        build().load_state_dict({})


# Two processes


REFIT = replace(RUNTIME, holdout=False)
CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"backbone": "mf", "batch_size": 1000}),
    (1, {"backbone": "lightgcn", "batch_size": 1000}),
    (3, {"backbone": "mf", "batch_size": 1000}),
    (1, {"backbone": "mf", "batch_size": 16530}),
)
"""Micro-batches and parameters."""


def two_epochs(runtime: Runtime, params: dict[str, Any]) -> tuple[torch.Tensor, float, dict[str, float], int]:
    """Weights, loss, metrics and the number of columns of units."""
    workload = build(runtime, **params)
    loss = [workload.train_epoch(epoch)["loss"] for epoch in (1, 2)][-1]
    found = workload.evaluate("test")
    return workload.model.embedding.detach(), loss, dict(found.metrics), len(found.units)


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    assert distributed.agree(f"from {rank}") == "from 0"
    assert distributed.reduce_sum(torch.tensor([1.0, rank])).tolist() == [2, 1]
    runtime = replace(REFIT, rank=rank, world_size=2)
    results = [two_epochs(replace(runtime, accumulate=parts), params) for parts, params in CASES]
    torch.save(results, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def test_two_processes_are_one(tmp_path: Path) -> None:
    mp.spawn(one_rank, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for (_, params), first, second in zip(CASES, *ranks):
        weights, loss, metrics, columns = two_epochs(REFIT, params)
        assert torch.equal(first[0], second[0])
        torch.testing.assert_close(first[0], weights, rtol=0, atol=2e-5)
        assert first[1] == second[1] == pytest.approx(loss, rel=1e-6)
        assert first[2] == second[2] == pytest.approx(metrics, abs=2e-3)  # two near-equal scores may change places
        assert (first[3], second[3]) == (columns, 0)


def test_a_case_ends_on_a_batch_smaller_than_the_world() -> None:
    assert build(REFIT).data.pairs.shape[1] % CASES[-1][1]["batch_size"] == 1


def test_alone_collectives_are_the_identity() -> None:
    value = torch.ones(2)
    assert distributed.reduce_sum(value) is value
    assert distributed.agree("mine") == "mine"
    model = torch.nn.Linear(1, 1)
    assert distributed.wrap(model, RUNTIME) is model


# Real data


@pytest.mark.data
@pytest.mark.parametrize(("backbone", "expected"), [("mf", 0.36), ("lightgcn", 0.36)])
def test_movielens(backbone: Any, expected: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Far above popularity (about 0.23) after 20 epochs; the README has the full runs."""
    import os

    root = Path(os.environ.get("ORCHESTRATOR_DATA", ""))
    if not (root / "ml-100k").is_dir():
        pytest.skip("ORCHESTRATOR_DATA holds no ml-100k")
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    runtime = replace(RUNTIME, data=root, holdout=False)
    workload = build(runtime, dataset="ml-100k", backbone=backbone, lr=0.005, batch_size=2048)
    assert (workload.data.n_users, workload.data.n_items, workload.data.pairs.shape[1]) == (943, 1682, 80_000)
    for epoch in range(1, 21):
        workload.train_epoch(epoch)
    found = workload.evaluate("test")
    assert len(found.units["id"]) == 943
    assert found.metrics["ndcg_at_20"] > expected
