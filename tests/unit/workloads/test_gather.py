"""A contrastive loss over two gloo processes with unequal shards, and its gradients, compared with one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from workloads import distributed
from workloads.contract import Runtime
from workloads.losses.contrastive import bcl_loss
from workloads.normalisation import SummedBatchNorm, synchronised
from workloads.scores import two_view_scores
from workloads.testing_distributed import run_on_ranks

COUNTS = (5, 3)
"""Images of each rank."""

ALONE = Runtime(device=torch.device("cpu"), data=Path(), seed=0, epochs=1)


def network() -> nn.Sequential:
    """Convolutions and a head in float64, with batch normalisation in two dimensions and in one."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6),
        nn.Linear(6, 5),
    ).double()  # fmt: skip


def views() -> torch.Tensor:
    """Random views, (images, 2, 3, 4, 4)."""
    return torch.randn(sum(COUNTS), 2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def trained(rank: int, world: int) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The loss over all images, the gradients summed over ranks, and the state after the forward pass."""
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=0, epochs=1, rank=rank, world_size=world)
    model = synchronised(network(), runtime)
    counts = COUNTS if world > 1 else (sum(COUNTS),)
    first = sum(counts[:rank])
    mine = views()[first : first + counts[rank]]
    pairs = functional.normalize(model(mine.flatten(0, 1)), dim=1).unflatten(0, (-1, 2))
    everyone = distributed.gather(pairs, counts).transpose(0, 1).flatten(0, 1)
    images = torch.arange(first, first + counts[rank])
    anchors = torch.cat([images, images + sum(COUNTS)])
    losses = bcl_loss(*two_view_scores(everyone, anchors), alpha=0.9, beta=0.7, tau=0.1, temperature=0.5)
    loss = losses.sum() / (2 * sum(COUNTS))
    torch.autograd.backward(loss)
    gradients = {
        name: distributed.reduce_sum(value.grad) for name, value in model.named_parameters() if value.grad is not None
    }
    return distributed.reduce_sum(loss.detach()), gradients, model.state_dict()


def one_rank(rank: int, folder: str) -> None:
    nobody = distributed.gather(torch.ones(rank, 2), (0, 1))
    assert nobody.tolist() == [[1, 1]]
    assert distributed.summed(torch.tensor([1.0, rank])).tolist() == [2, 1]
    shared = torch.full((3, 2), float(rank))
    distributed.share_rows(shared, (1, 2))
    assert shared.tolist() == [[0, 0], [1, 1], [1, 1]]
    torch.save(trained(rank, 2), Path(folder, f"{rank}.pt"))


def test_loss_and_gradients_of_two_processes_equal_those_of_one(tmp_path: Path) -> None:
    run_on_ranks(one_rank, str(tmp_path))
    loss, gradients, state = trained(0, 1)
    assert len(gradients) == len(list(network().parameters()))
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(found[0], loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1], gradients, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found[2], state, rtol=1e-9, atol=1e-12)


def test_single_process_exchanges_nothing() -> None:
    rows = torch.ones(3, 2)
    assert distributed.gather(rows, (3,)) is rows
    assert distributed.summed(rows) is rows
    model = network()
    assert synchronised(model, ALONE) is model
    assert not any(isinstance(layer, SummedBatchNorm) for layer in model.modules())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_summed_batch_norm_matches_pytorch(training: bool, momentum: float | None) -> None:
    theirs = nn.BatchNorm2d(3, momentum=momentum).train(training)
    ours = SummedBatchNorm(3, momentum=momentum).train(training)
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(3)) * 5 + 2
    for _ in range(2):
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-5)
    half = ours(x.bfloat16())
    assert half.dtype == torch.bfloat16
