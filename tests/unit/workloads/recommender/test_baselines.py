"""Baselines, compared with slow references: counts, neighbours by loops, dense inverses, dense normal equations."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from workloads.contract import Runtime
from workloads.data import load_interactions
from workloads.recommender import baselines
from workloads.recommender.backbones import EASE_BYTES, ease_memory_error
from workloads.recommender.dataset import History
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)


def build(runtime: Runtime = RUNTIME, **params: Any) -> Recommender:
    return Recommender(Params(**params), runtime)


def dense(history: History, n_items: int) -> NDArray[np.float64]:
    return history.mask(0, len(history.counts), n_items).double().numpy()


def scores(workload: Recommender, known: History) -> NDArray[np.float32]:
    return workload.scorer(known).scores(0, workload.data.n_users).numpy()


def test_popularity_counts_interactions() -> None:
    workload = build(backbone="popularity")
    workload.train_epoch(1)
    counts = dense(workload.data.train, workload.data.n_items).sum(0)
    np.testing.assert_array_equal(scores(workload, workload.data.train), np.tile(counts, (workload.data.n_users, 1)))


@pytest.mark.parametrize("shrink", [0.0, 7.5])
def test_item_knn_scores_match_a_loop_reference(shrink: float) -> None:
    k = 6
    workload = build(backbone="item_knn", knn_items=k, knn_shrink=shrink)
    workload.train_epoch(1)
    x = dense(workload.data.train, workload.data.n_items)
    counts = x.sum(0)
    weights = np.zeros((x.shape[1], x.shape[1]))
    for j in range(x.shape[1]):
        similar = np.zeros(x.shape[1])
        for i in range(x.shape[1]):
            if i != j and counts[i] and counts[j]:
                similar[i] = x[:, i] @ x[:, j] / (np.sqrt(counts[i] * counts[j]) + shrink)
        nearest = np.argsort(-similar.astype(np.float32), kind="stable")[:k]
        weights[nearest, j] = similar[nearest]
    seen = dense(workload.data.seen, workload.data.n_items)
    np.testing.assert_allclose(scores(workload, workload.data.seen), seen @ weights, rtol=1e-5, atol=1e-6)


def test_ease_scores_match_a_dense_inverse() -> None:
    lam = 3.0
    workload = build(backbone="ease", ease_lambda=lam)
    workload.train_epoch(1)
    x = dense(workload.data.train, workload.data.n_items)
    inverse = np.linalg.inv(x.T @ x + lam * np.eye(x.shape[1]))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    np.testing.assert_allclose(scores(workload, workload.data.train), x @ weights, atol=1e-5)


def test_ease_minimises_its_objective() -> None:
    """A step within the constraint, in any direction, does not lower |X - X B|² + λ |B|²."""
    workload = build(backbone="ease", ease_lambda=3.0)
    workload.train_epoch(1)
    x = torch.from_numpy(dense(workload.data.train, workload.data.n_items))
    weights = workload.state_dict()["weights"].double()

    def objective(b: torch.Tensor) -> float:
        return ((x - x @ b).square().sum() + 3 * b.square().sum()).item()

    for seed in range(3):
        step = 1e-2 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert objective(weights + step.fill_diagonal_(0)) > objective(weights)


def test_ease_memory_error_message_names_the_largest_number_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ease_memory_error(1000, EASE_BYTES * 1000**2) is None
    monkeypatch.setattr(baselines, "available_bytes", lambda _device: EASE_BYTES * 123**2 + 1)
    message = r"it takes 123 items. Set backbone=item_knn or backbone=ials"
    with pytest.raises(ValueError, match=message):
        build(backbone="ease")
    params = Params(backbone="ease")
    with pytest.raises(ValueError, match=message):
        params.check_memory(Path(), EASE_BYTES * 123**2 + 1)
    params.check_memory(Path(), EASE_BYTES * 400**2)
    Params(backbone="item_knn").check_memory(Path(), 0)


def normal_equations(
    x: NDArray[np.float64],
    other: NDArray[np.float64],
    alpha: float,
    lam: float,
    ratings: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Hu et al., eq. 4, over all pairs of each row. ``ratings``: r, by default ``x``."""
    rows = []
    for own, r in zip(x, x if ratings is None else ratings):
        weighted = other.T * (1 + alpha * r)
        rows.append(np.linalg.solve(weighted @ other + lam * np.eye(other.shape[1]), weighted @ own))
    return np.array(rows)


def test_ials_epoch_matches_dense_normal_equations() -> None:
    alpha, lam = 5.0, 2.0
    workload = build(backbone="ials", dim=4, ials_alpha=alpha, ials_lambda=lam)
    x = dense(workload.data.train, workload.data.n_items)
    for epoch in (1, 2):
        before = {name: tensor.double().numpy() for name, tensor in workload.state_dict().items()}
        loss = workload.train_epoch(epoch)["loss"]
        users = normal_equations(x, before["items"], alpha, lam)
        items = normal_equations(x.T, users, alpha, lam)
        after = workload.state_dict()
        np.testing.assert_allclose(after["users"], users, atol=2e-4)
        np.testing.assert_allclose(after["items"], items, atol=2e-4)
        objective = ((1 + alpha * x) * (x - users @ items.T) ** 2).sum() + lam * ((users**2).sum() + (items**2).sum())
        assert loss == pytest.approx(objective / x.sum(), rel=1e-4)


def rated(data: Any, history: History) -> NDArray[np.float64]:
    """The ratings of a history's interactions, by loops, and 0 elsewhere."""
    known = {tuple(pair): rating for pair, rating in zip(data.train.tolist(), data.train_ratings.tolist())}
    ratings = np.zeros((len(history.counts), data.n_items))
    for user, item in zip(history.users.tolist(), history.items.tolist()):
        ratings[user, item] = known[user, item]
    return ratings


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a table of counts from 0 to 40, in random order."""
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    pairs = [divmod(int(code), 30) for code in rng.permutation(25 * 30)[:300]]
    lines = (f"{user},{item},{rng.integers(41)}" for user, item in pairs)
    (tmp_path / "own.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    return str(tmp_path / "own.csv")


@pytest.mark.parametrize("dataset", ["counts", pytest.param("ml-100k", marks=pytest.mark.data("ml-100k"))])
def test_ials_weighs_by_ratings_or_counts(dataset: str, counts: str) -> None:
    """Factors and loss match Hu et al., eq. 4, with c = 1 + α r over all pairs."""
    alpha, lam = 0.7, 2.0
    name = counts if dataset == "counts" else dataset
    root = Path(os.environ.get("ORCHESTRATOR_DATA", ""))
    params = {"dataset": name, "backbone": "ials", "dim": 4, "ials_alpha": alpha, "ials_lambda": lam}
    workload = build(replace(RUNTIME, data=root), **params, ials_confidence="rating")
    r = rated(load_interactions(name, root), workload.data.train)
    x = dense(workload.data.train, workload.data.n_items)
    for epoch in (1, 2):
        before = {name: tensor.double().numpy() for name, tensor in workload.state_dict().items()}
        loss = workload.train_epoch(epoch)["loss"]
        users = normal_equations(x, before["items"], alpha, lam, r)
        items = normal_equations(x.T, users, alpha, lam, r.T)
        after = workload.state_dict()
        np.testing.assert_allclose(after["users"], users, atol=1e-3)
        np.testing.assert_allclose(after["items"], items, atol=1e-3)
        objective = ((1 + alpha * r) * (x - users @ items.T) ** 2).sum() + lam * ((users**2).sum() + (items**2).sum())
        assert loss == pytest.approx(objective / x.sum(), rel=1e-3)
    assert workload.servable().config["fold_in"] == {"alpha": pytest.approx(alpha * r[x > 0].mean()), "ridge": lam}


def test_ials_with_equal_ratings_equals_ials_with_scaled_alpha(counts: str) -> None:
    table = Path(counts)
    lines = (f"{line.rpartition(',')[0]},2" for line in table.read_text().splitlines()[1:])
    table.write_text("\n".join(["user,item,rating", *lines]) + "\n")
    given = {"dataset": counts, "backbone": "ials", "dim": 4}
    workloads = build(**given, ials_confidence="rating", ials_alpha=2.0), build(**given, ials_alpha=4.0)
    for workload in workloads:
        workload.train_epoch(1)
    np.testing.assert_allclose(*(scores(each, each.data.train) for each in workloads), atol=1e-5)
    assert workloads[0].servable().config == workloads[1].servable().config


@pytest.mark.parametrize(
    ("given", "rating", "message"),
    [
        ({"dataset": "synthetic"}, "1", r"weighs by ratings or counts from 0: got none\. Drop it"),
        ({}, "-1", r"weighs by ratings or counts from 0: got -1\. Drop it"),
        ({"dataset_noise": 0.1}, "1", r"dataset_noise injects unrated interactions\. Drop one"),
    ],
)
def test_ials_confidence_without_valid_ratings_is_refused(
    given: dict[str, Any], rating: str, message: str, counts: str
) -> None:
    with Path(counts).open("a") as table:
        table.writelines(f"0,{item},{rating}\n" for item in range(90, 100))
    params = Params(**{"dataset": counts, "backbone": "ials", "ials_confidence": "rating", "split": "random", **given})
    with pytest.raises(ValueError, match=message):
        params.check_data(Path())


@pytest.mark.parametrize("backbone", ["popularity", "item_knn", "ease"])
def test_baseline_is_fitted_in_the_first_epoch_only(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build(backbone=backbone)
    workload.train_epoch(1)
    fitted = {name: tensor.clone() for name, tensor in workload.state_dict().items()}
    resumed = build(backbone=backbone)
    resumed.load_state_dict(fitted)
    for one in (workload, resumed):
        monkeypatch.setattr(type(one.baseline), "_fit", lambda _: pytest.fail("fitted again"))
        assert one.train_epoch(2) == {}
        assert one.evaluate("validation").metrics == workload.evaluate("validation").metrics
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, fitted[name])


def test_ials_lowers_its_objective() -> None:
    workload = build(backbone="ials", dim=8)
    losses = [workload.train_epoch(epoch)["loss"] for epoch in range(1, 6)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("backbone", "params", "fix"),
    [
        ("ease", {"ease_lambda": 1e-18}, "larger ease_lambda"),
        ("ials", {"ials_lambda": 1e-18}, "larger ials_lambda or a smaller ials_alpha"),
        ("ials", {"ials_lambda": 1e-3, "ials_alpha": 1e5}, "larger ials_lambda or a smaller ials_alpha"),
    ],
)
def test_singular_systems_of_a_baseline_are_refused_with_the_parameter(
    backbone: str, params: dict[str, float], fix: str, tmp_path: Path
) -> None:
    """All columns of one user's items are equal."""
    (tmp_path / "own.csv").write_text("user,item\n" + "".join(f"1,{item}\n" for item in range(10)))
    built = build(dataset=str(tmp_path / "own.csv"), backbone=backbone, **params)
    with pytest.raises(ValueError, match=f"singular: set a {fix}$"):
        built.train_epoch(1)


def test_baseline_scores_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for backbone, own in (("ials", {"dim": 4}), ("ease", {}), ("item_knn", {})):
        tables = []
        for block, gathered in ((256, 2**15), (7, 64)):
            monkeypatch.setattr(baselines, "_BLOCK", block)
            monkeypatch.setattr(baselines, "_GATHERED", {"cpu": gathered})
            workload = build(backbone=backbone, **own)
            workload.train_epoch(1)
            tables.append(scores(workload, workload.data.train))
        np.testing.assert_allclose(*tables, atol=1e-4)


@pytest.mark.parametrize("backbone", ["item_knn", "ease", "ials"])
def test_baseline_ndcg_exceeds_twice_that_of_popularity(backbone: str) -> None:
    values = {}
    for name in ("popularity", backbone):
        workload = build(replace(RUNTIME, holdout=False), backbone=name)
        for epoch in range(1, 4):
            workload.train_epoch(epoch)
        values[name] = workload.evaluate("test").metrics["ndcg_at_20"]
    assert values[backbone] > 2 * values["popularity"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "bpr"}, "loss=bpr has no effect with backbone=ease. Drop loss, or set backbone=mf or backbone=light"),
        ({"sampler": "uniform"}, "sampler=uniform has no effect with backbone=ease"),
        ({"optimizer": "adam"}, "optimizer=adam has no effect with backbone=ease"),
        ({"lr": 0.1}, "lr=0.1 has no effect with backbone=ease"),
        ({"batch_size": 64}, "batch_size=64 has no effect with backbone=ease"),
        ({"dim": 8}, "dim=8 has no effect with backbone=ease.* or backbone=ials"),
        ({"layers": 2}, "layers=2 has no effect with backbone=ease"),
        ({"quality": True}, "quality=true has no effect with backbone=ease"),
        ({"contrast": "sgl"}, "contrast=sgl needs the graph of backbone=lightgcn, not backbone=ease"),
        ({"knn_items": 5}, "knn_items=5 has no effect with backbone=ease. Drop knn_items, or set backbone=item_knn"),
        ({"ease_lambda": 0}, "greater than 0"),
        (
            {"ials_confidence": "rating"},
            "ials_confidence=rating has no effect with backbone=ease. .* set backbone=ials",
        ),
        ({"backbone": "ials", "ials_confidence": "ratings"}, "'equal' or 'rating'"),
        ({"backbone": "slim"}, "'mf', 'lightgcn', .* or 'ials'"),
    ],
)
def test_unused_or_invalid_parameters_of_a_baseline_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**{"backbone": "ease", **given})


def test_ials_refuses_micro_batches_virtual_epochs_and_step_logs() -> None:
    for name, value in {"accumulate": 2, "steps_per_epoch": 3, "log_every": 1}.items():
        with pytest.raises(ValueError, match=f"=ials is fitted as a whole, which rules out {name}={value}\\. Leave"):
            build(replace(RUNTIME, **{name: value}), backbone="ials")


def test_checkpoint_that_does_not_fit_the_baseline_is_refused() -> None:
    with pytest.raises(ValueError, match=r"its users has shape \(600, 8\), backbone=ials .* has \(600, 4\)"):
        build(backbone="ials", dim=4).load_state_dict(build(backbone="ials", dim=8).state_dict())
    with pytest.raises(ValueError, match="its weights has shape None, backbone=ease"):
        build(backbone="ease").load_state_dict({})
