"""Two gloo processes compared with one process on the same global batches, and the collectives."""

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
from workloads.testing_distributed import run_on_ranks

REFIT = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2, holdout=False)
CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"backbone": "mf", "batch_size": 1000}),
    (1, {"backbone": "lightgcn", "batch_size": 1000}),
    (3, {"backbone": "mf", "batch_size": 1000}),
    (1, {"backbone": "mf", "batch_size": 16530}),
    (1, {"backbone": "lightgcn", "batch_size": 1000, "contrast": "sgl", "augmentation": "random_walk", "layers": 2}),
    (
        3,
        {"backbone": "lightgcn", "batch_size": 1000, "contrast": "simgcl", "loss": "dcl", "negatives": 4},
    ),
    (2, {"backbone": "lightgcn", "batch_size": 2000, "contrast": "ncl", "prototype_warmup": 1, "clusters": 8}),
)
"""Micro-batches and parameters."""


def two_epochs(runtime: Runtime, params: dict[str, Any]) -> tuple[Recommender, float]:
    """The workload and its loss after two epochs."""
    workload = Recommender(Params(**params), runtime)
    return workload, [workload.train_epoch(epoch)["loss"] for epoch in (1, 2)][-1]


def measured(workload: Recommender) -> tuple[dict[str, float], int]:
    """The metrics, and the number of columns of units."""
    evaluation = workload.evaluate("test")
    return dict(evaluation.metrics), len(evaluation.units)


def one_rank(rank: int, folder: str) -> None:
    assert distributed.broadcast(f"from {rank}") == "from 0"
    sent = {"a": torch.arange(7).to(torch.bfloat16), "b": torch.tensor(True), "c": torch.zeros(0, 2)}
    found = distributed.broadcast_tensors(sent if rank == 0 else {}, torch.device("cpu"))
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in sent.items())
    mine = torch.tensor([1.0, rank])
    assert distributed.reduce_sum(mine).tolist() == [2, 1]
    assert mine.tolist() == [1, rank]
    runtime = replace(REFIT, rank=rank, world_size=2)
    trained = [two_epochs(replace(runtime, accumulate=parts), params) for parts, params in CASES]
    results = [(workload.model.embedding.detach(), loss, *measured(workload)) for workload, loss in trained]
    torch.save(results, Path(folder, f"{rank}.pt"))


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one_process(tmp_path: Path) -> None:
    run_on_ranks(one_rank, str(tmp_path))
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for (_, params), first, second in zip(CASES, *ranks):
        alone, loss = two_epochs(REFIT, params)
        assert torch.equal(first[0], second[0])
        torch.testing.assert_close(first[0], alone.model.embedding.detach(), rtol=0, atol=2e-5)
        assert first[1] == second[1] == pytest.approx(loss, rel=1e-6)
        # If weights differ in the last bit, near-equal scores may swap, so these metrics are of equal weights.
        alone.load_state_dict({**alone.state_dict(), "embedding": first[0]})
        metrics, columns = measured(alone)
        assert first[2] == second[2] == metrics
        assert (first[3], second[3]) == (columns, 0)


class PartlyUsed(torch.nn.Module):
    """Half of its parameters are in no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.used = torch.nn.Linear(2, 1)
        self.mask = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(self.frozen(x))


def two_steps(rank: int) -> str:
    """The error of the second step."""
    model = distributed.wrap(PartlyUsed(), replace(REFIT, rank=rank, world_size=2))
    try:
        for _ in range(2):
            model(torch.ones(3, 2)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_parameters_without_a_gradient_are_named() -> None:
    for said in run_on_ranks(two_steps):
        assert "the last one gave none to mask.weight, mask.bias: call requires_grad_(False)" in said
        assert "\n" not in said


def test_a_case_ends_on_a_batch_smaller_than_the_world() -> None:
    assert Recommender(Params(), REFIT).data.pairs.shape[1] % 16530 == 1


def test_collectives_of_a_single_process_return_their_input() -> None:
    value = torch.ones(2)
    assert distributed.reduce_sum(value) is value
    assert distributed.broadcast("mine") == "mine"
    assert distributed.broadcast_tensors({"a": value}, torch.device("cpu"))["a"] is value
    model = torch.nn.Linear(1, 1)
    assert distributed.wrap(model, REFIT) is model


@pytest.mark.parametrize(
    ("message", "lost", "late"),
    [
        (
            "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10475",
            True,
            False,
        ),
        (
            "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 15000ms for recv operation",
            False,
            True,
        ),
        ("[gloo] cuda: out of memory", False, False),
        ("mat1 and mat2 shapes cannot be multiplied", False, False),
        ("the download timed out", False, False),
    ],
)
def test_collective_errors_are_classified_as_lost_peer_or_timeout(message: str, lost: bool, late: bool) -> None:
    error = RuntimeError(message)
    assert (distributed.peer_lost(error), distributed.timed_out(error)) == (lost, late)
