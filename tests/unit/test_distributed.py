"""Two gloo processes against one on the same global batches, and the collectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from workloads import distributed
from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender
from workloads.two_ranks import together

REFIT = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2, holdout=False)
CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"backbone": "mf", "batch_size": 1000}),
    (1, {"backbone": "lightgcn", "batch_size": 1000}),
    (3, {"backbone": "mf", "batch_size": 1000}),
    (1, {"backbone": "mf", "batch_size": 16530}),
)
"""Micro-batches and parameters."""


def two_epochs(runtime: Runtime, params: dict[str, Any]) -> tuple[torch.Tensor, float, dict[str, float], int]:
    """Weights, loss, metrics and the number of columns of units."""
    workload = Recommender(Params(**params), runtime)
    loss = [workload.train_epoch(epoch)["loss"] for epoch in (1, 2)][-1]
    found = workload.evaluate("test")
    return workload.model.embedding.detach(), loss, dict(found.metrics), len(found.units)


def one_rank(rank: int, folder: str) -> None:
    assert distributed.agree(f"from {rank}") == "from 0"
    mine = torch.tensor([1.0, rank])
    assert distributed.reduce_sum(mine).tolist() == [2, 1]
    assert mine.tolist() == [1, rank]
    runtime = replace(REFIT, rank=rank, world_size=2)
    results = [two_epochs(replace(runtime, accumulate=parts), params) for parts, params in CASES]
    torch.save(results, Path(folder, f"{rank}.pt"))


def test_two_processes_are_one(tmp_path: Path) -> None:
    together(one_rank, str(tmp_path))
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for (_, params), first, second in zip(CASES, *ranks):
        weights, loss, metrics, columns = two_epochs(REFIT, params)
        assert torch.equal(first[0], second[0])
        torch.testing.assert_close(first[0], weights, rtol=0, atol=2e-5)
        assert first[1] == second[1] == pytest.approx(loss, rel=1e-6)
        assert first[2] == second[2] == pytest.approx(metrics, abs=2e-3)  # two near-equal scores may change places
        assert (first[3], second[3]) == (columns, 0)


def test_a_case_ends_on_a_batch_smaller_than_the_world() -> None:
    assert Recommender(Params(), REFIT).data.pairs.shape[1] % CASES[-1][1]["batch_size"] == 1


def test_alone_collectives_are_the_identity() -> None:
    value = torch.ones(2)
    assert distributed.reduce_sum(value) is value
    assert distributed.agree("mine") == "mine"
    model = torch.nn.Linear(1, 1)
    assert distributed.wrap(model, REFIT) is model
