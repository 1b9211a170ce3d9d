"""Micro-batches with a gradient cache compared with the plain backward, and their effect on batch normalisation."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from workloads import gradient_cache
from workloads.losses.contrastive import hcl_loss
from workloads.scores import two_view_scores


def _network(normalised: bool) -> nn.Sequential:
    torch.manual_seed(3)
    middle = nn.BatchNorm1d(7) if normalised else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 7), middle, nn.Linear(7, 5)).double()


def _inputs() -> torch.Tensor:
    return torch.randn(12, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def _loss(pairs: torch.Tensor) -> torch.Tensor:
    views = pairs.transpose(0, 1).flatten(0, 1)
    positive, negatives = two_view_scores(views, torch.arange(len(views)))
    return hcl_loss(positive, negatives, positive.unsqueeze(1), tau=0.1, beta=0.5, temperature=0.5).mean()


def _backward(model: nn.Module, parts: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    def encode(inputs: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = functional.normalize(model(inputs.flatten(0, 1)), dim=1)
        return embeddings.unflatten(0, (-1, 2))

    model.zero_grad()
    loss = gradient_cache.backward([partial(encode, part) for part in _inputs().chunk(parts)], _loss, model)
    return loss, {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("parts", [2, 3, 12])
def test_micro_batches_give_the_plain_loss_and_gradient(parts: int) -> None:
    model = _network(normalised=False)
    torch.testing.assert_close(_backward(model, parts), _backward(model, 1), rtol=1e-10, atol=1e-12)


def test_micro_batches_match_with_frozen_batch_norm_statistics() -> None:
    model = _network(normalised=True).eval()
    torch.testing.assert_close(_backward(model, 4), _backward(model, 1), rtol=1e-10, atol=1e-12)


def test_batch_norm_uses_and_tracks_each_micro_batch_once() -> None:
    """Statistics are those of a micro-batch, so loss and gradient differ from the batch's.

    The running statistics are updated once for each micro-batch.
    """
    cached, plain = _network(normalised=True), _network(normalised=True)
    assert not torch.isclose(_backward(cached, 4)[0], _backward(plain, 1)[0], rtol=1e-6)
    expected = _network(normalised=True)
    with torch.no_grad():
        for part in _inputs().chunk(4):
            expected(part.flatten(0, 1))
    torch.testing.assert_close(cached[1].state_dict(), expected[1].state_dict() | {
        name: value for name, value in cached[1].state_dict().items() if name in ("weight", "bias")
    })  # fmt: skip
    assert cached[1].track_running_stats
    assert cached[1].num_batches_tracked == 4
