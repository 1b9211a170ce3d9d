"""The abstention part on two ranks: both hold out the same queries, and only rank 0 makes the served table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support import small_vera
from tests.unit.workloads.lifelong import test_workload as lifelong
from tests.unit.workloads.text_ranker import test_workload as ranker
from workloads.contract import Runtime
from workloads.lifelong.workload import Lifelong
from workloads.testing_distributed import WORLD, run_on_ranks
from workloads.text_ranker.workload import TextRanker
from workloads.vera.workload import Vera

CASES: dict[str, tuple[Any, dict[str, Any], Runtime]] = {
    "vera": (Vera, small_vera.SMALL, small_vera.RUNTIME),
    "text ranker": (TextRanker, ranker.SMALL, ranker.RUNTIME),
    "lifelong": (Lifelong, lifelong.SMALL, lifelong.RUNTIME),
}


def held_out(rank: int, name: str, ranks: int = WORLD) -> tuple[list[int], dict[str, torch.Tensor] | None]:
    """Return the held-out queries and, on rank 0, the served table, after a training with a small learning rate."""
    kind, params, runtime = CASES[name]
    held = replace(runtime, abstention_part=0.25, steps_per_epoch=2, rank=rank, world_size=ranks)
    workload = kind(kind.Params(**{**params, "lr": 1e-6}), held)
    for epoch in range(1, held.epochs + 1):
        workload.train_epoch(epoch)
    weights = workload.servable().weights if rank == 0 else None
    table = weights and {key: value for key, value in weights.items() if key.startswith("abstention.")}
    return workload.data.abstention.tolist(), table


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vera", "text ranker", "lifelong"])
def test_abstention_table_of_two_ranks_equals_that_of_one(name: str) -> None:
    queries, alone = held_out(0, name, ranks=1)
    (first, table), (second, nothing) = run_on_ranks(held_out, name)
    assert first == second == queries
    assert nothing is None
    assert alone
    assert table
    assert table.keys() == alone.keys()
    scores = "abstention.scores"
    assert table[scores].shape[-1] == len(queries)
    torch.testing.assert_close(table[scores], alone[scores], rtol=1e-2, atol=1e-3)
