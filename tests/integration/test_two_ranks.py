"""Two ranks of which one fails, omits a collective or hangs: the error names it, and new ranks work afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from workloads.testing_distributed import SECONDS, run_on_ranks

pytestmark = pytest.mark.faults


def whole(rank: int) -> int:
    return rank


def failing(rank: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 has had enough")
    dist.all_reduce(torch.ones(1))


def at_odds(rank: int) -> None:
    """Rank 0 waits in a collective that rank 1 does not call."""
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(3)


def hanging(rank: int, folder: str) -> None:
    Path(folder, str(rank)).touch()
    while rank == 1:
        time.sleep(0.1)


@pytest.mark.parametrize(("function", "said"), [(failing, "rank 1 has had enough"), (at_odds, "all_reduce")])
def test_a_failure_of_one_rank_ends_both(function: Callable[[int], None], said: str) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=said):
        run_on_ranks(function)
    assert time.monotonic() - began < SECONDS / 2, "the other rank waited for it"
    assert run_on_ranks(whole) == [0, 1]


def test_timeout_error_names_the_hung_rank_and_its_function(tmp_path: Path) -> None:
    run_on_ranks(whole)
    with pytest.raises(TimeoutError, match=r"(?s)not done after 5 s:\nrank 1: .*in hanging"):
        run_on_ranks(hanging, str(tmp_path), seconds=5)
    assert {file.name for file in tmp_path.iterdir()} == {"0", "1"}
    assert run_on_ranks(whole) == [0, 1]
