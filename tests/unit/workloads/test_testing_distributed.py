"""Functions on two ranks of one machine: their results, and the reuse of processes."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from workloads.testing_distributed import run_on_ranks


def told(rank: int, word: str) -> list[object]:
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    return [word, rank, total.item(), os.environ.get("A_WORD"), torch.get_num_threads(), os.getpid()]


def test_run_on_ranks_returns_results_by_rank_and_reuses_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_WORD", "of this test")
    first, second = run_on_ranks(told, "said")
    assert first[:-1] == ["said", 0, 3, "of this test", 1]
    assert second[:-1] == ["said", 1, 3, "of this test", 1]
    assert [rank[-1] for rank in run_on_ranks(told, "again")] == [first[-1], second[-1]]
