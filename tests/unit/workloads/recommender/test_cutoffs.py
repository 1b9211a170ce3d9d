"""Metrics at configured cutoffs, against a slow reference; invalid cutoffs and objectives."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from workloads.contract import Runtime
from workloads.recommender import evaluation
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

pytestmark = pytest.mark.usefixtures("one_thread")
RUNTIME = Runtime(device=torch.device("cpu"), data=Path(os.environ.get("ORCHESTRATOR_DATA", "")), seed=3, epochs=2)


def trained(**params: Any) -> Recommender:
    workload = Recommender(Params(**params), RUNTIME)
    workload.train_epoch(1)
    return workload


def slow(workload: Recommender, cutoffs: Sequence[int]) -> dict[str, float]:
    """Reference: the metrics of test by their definitions, user by user."""
    data = workload.data
    relevant, excluded = workload.ranking_targets("test")
    scores = workload.scorer(excluded).scores(0, data.n_users).numpy()
    counts = data.popularity.numpy()
    rows: dict[str, list[float]] = {}
    shown = {k: np.zeros(data.n_items) for k in cutoffs}
    for user in np.flatnonzero(relevant.counts):
        own, wanted = (
            set(history.items[slice(*history.indptr[user : user + 2])].tolist()) for history in (excluded, relevant)
        )
        ranked = [item for item in np.argsort(-scores[user], kind="stable").tolist() if item not in own]
        for k in cutoffs:
            hits = [item in wanted for item in ranked[:k]]
            gain, ideal = (sum(1 / np.log2(2 + rank) for rank in ranks) for ranks in (
                np.flatnonzero(hits), range(min(k, len(wanted)))
            ))  # fmt: skip
            values = {
                "precision": sum(hits) / k, "recall": sum(hits) / len(wanted), "ndcg": gain / ideal, "hit": any(hits),
                "popularity": counts[ranked[:k]].mean(),
                "novelty": np.log2(data.n_users / counts[ranked[:k]].clip(min=1)).mean(),
            }  # fmt: skip
            for name, value in values.items():
                rows.setdefault(f"{name}_at_{k}", []).append(value)
            shown[k][ranked[:k]] += 1
    found = {name: float(np.mean(values)) for name, values in rows.items()}
    for k, lists in shown.items():
        pairs = np.abs(lists[:, None] - lists).sum()  # the Gini coefficient as the mean difference of two items
        found |= {f"coverage_at_{k}": (lists > 0).mean(), f"gini_at_{k}": pairs / (2 * len(lists) * lists.sum())}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "dataset", ["synthetic", pytest.param("ml-100k", marks=pytest.mark.data("ml-100k"))]
)  # fmt: skip
@pytest.mark.parametrize("compiled_from", [0, 2**60])
def test_metrics_at_each_cutoff_match_reference(
    dataset: str, compiled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cutoff is 1, and one exceeds a user's candidates, so that the list has all of them."""
    monkeypatch.setattr(evaluation, "COMPILED_FROM", compiled_from)
    monkeypatch.setattr(evaluation, "INSERTED", 1000)
    cutoffs = (1, 7, 1000)
    workload = trained(dataset=dataset, backbone="ease", cutoffs=cutoffs)
    found = workload.evaluate("test")
    for name, value in slow(workload, cutoffs).items():
        assert found.metrics[name] == pytest.approx(value, abs=2e-5), name
    assert {name.rpartition("_")[2] for name in found.units if "_at_" in name} == {"1", "7", "1000"}
    if dataset == "synthetic":
        assert found.metrics["recall_at_1000"] == 1


def test_a_metric_does_not_depend_on_the_other_cutoffs() -> None:
    default, other = (trained(backbone="ease", **given) for given in ({}, {"cutoffs": "100,20"}))
    for split in ("validation", "test"):
        before, after = (workload.evaluate(split) for workload in (default, other))
        shared = {name for name in before.metrics if name.endswith("_at_20")} | {"auc"}
        assert shared == before.metrics.keys() & after.metrics.keys()
        assert {name: before.metrics[name] for name in shared} == {name: after.metrics[name] for name in shared}
        assert "ndcg_at_100" in after.units


def test_members_of_a_pack_are_measured_at_their_cutoffs() -> None:
    members = [Recommender(Params(cutoffs=(3, 50), lr=lr), RUNTIME) for lr in (0.001, 0.002)]
    expected = [member.evaluate("validation").metrics for member in members]
    assert [each.metrics for each in Recommender.pack(members).evaluate([0, 1], "validation")] == expected
    assert "gini_at_50" in expected[0]
    assert members[0].pack_shape() != Recommender(Params(), RUNTIME).pack_shape()


def test_compiled_ranking_is_not_used_for_lists_of_more_than_100_items() -> None:
    pays = [evaluation._compilation_pays(RUNTIME.device, 10**6, 500, 1, k) for k in (100, 101)]
    assert pays == [importlib.util.find_spec("numba") is not None, False]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *(("10,50,100", (10, 50, 100)), ("20, 5", (5, 20)), ("1000", (1000,)), ([50, 10], (10, 50))),
        *((7, (7,)), (np.int64(7), (7,))),
    ],
)
def test_cutoffs_are_ascending(given: Any, expected: tuple[int, ...]) -> None:
    params = Params(cutoffs=given)
    assert params.cutoffs == expected
    plain = params.model_dump(mode="json")
    assert plain["cutoffs"] == ",".join(map(str, expected)), "the form of the command line"
    assert Params(**plain) == params


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0", "greater than or equal to 1"),
        ("5,-3", "greater than or equal to 1"),
        ("5,10,5", "a cutoff is given twice"),
        ("1001", "less than or equal to 1000"),
        ("5,x", "valid integer"),
        ("2.5", "valid integer"),
        ("", "valid integer"),
        ([], "at least 1 item"),
        (list(range(1, 18)), "at most 16 items"),
        (None, "valid tuple"),
    ],
)
def test_invalid_cutoffs_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(cutoffs=given)


def test_objective_at_a_missing_cutoff_is_refused() -> None:
    Params().check_objectives(["ndcg_at_20", "auc", "gini_at_5"])
    params = Params(cutoffs=(10, 50))
    params.check_objectives(["ndcg_at_50", "recall_at_10", "auc"])
    message = r"no ndcg_at_20 with cutoffs=10,50\. Set objective=ndcg_at_50, or add 20 to cutoffs$"
    with pytest.raises(ValueError, match=message):
        params.check_objectives(["auc", Recommender.objective.metric])
    with pytest.raises(ValueError, match=r"no ndcg_at_x with cutoffs=5,10,20\. Set objective=ndcg_at_20$"):
        Params().check_objectives(["ndcg_at_x"])
