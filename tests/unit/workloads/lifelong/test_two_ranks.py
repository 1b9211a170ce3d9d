"""Two ranks with an index in files: both map the files that rank 0 writes, and rank alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.workloads.lifelong.test_workload import RUNTIME, SMALL
from workloads.lifelong.workload import Lifelong
from workloads.testing_distributed import WORLD, run_on_ranks


def trained(rank: int, folder: str) -> tuple[Any, list[bool]]:
    """The rankings at the end of the last session, and for each segment whether it is mapped from a file."""
    params = Lifelong.Params(**{**SMALL, "index": folder})
    workload = Lifelong(params, replace(RUNTIME, rank=rank, world_size=WORLD, steps_per_epoch=1))
    for epoch in range(1, RUNTIME.epochs + 1):
        workload.train_epoch(epoch)
    return workload.rankings[-1], [not segment.vectors.flags.writeable for segment in workload.index._segments]


def test_two_ranks_map_the_same_index_files_and_rank_alike(tmp_path: Any) -> None:
    (first, first_mapped), (second, second_mapped) = run_on_ranks(trained, str(tmp_path / "index"))
    assert (first == second).all()
    assert first_mapped == second_mapped
    assert all(first_mapped)
    assert len(first_mapped) > 1
