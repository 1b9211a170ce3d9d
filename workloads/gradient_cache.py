"""Gradient caching: backward of a contrastive loss over a batch too large for one pass. Gao et al., RepL4NLP 2021."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workloads.distributed import without_sync

Encode = Callable[[], torch.Tensor]
"""Returns the embeddings of a micro-batch, (b, ...), with their graph; each call gives the same values."""


def backward(
    parts: Sequence[Encode], loss_of: Callable[[torch.Tensor], torch.Tensor], model: nn.Module
) -> torch.Tensor:
    """Compute the gradients of a loss of all embeddings, holding the graph of one micro-batch at a time.

    All embeddings are computed without a graph, then the loss and its gradient with respect to them, then each
    micro-batch again with that gradient. Loss and gradients equal those of one pass, except that batch normalisation
    uses the statistics of a micro-batch. The forward work doubles. Memory is then limited by the loss itself: the
    embeddings and, for a contrastive loss, the O(B²) scores of all pairs.

    Args:
        parts: the micro-batches; a single one is an ordinary backward pass.
        loss_of: maps the embeddings of all micro-batches, in order, (B, ...), to a scalar.
        model: the encoder, in DistributedDataParallel or not; gradients are synchronised with the last part.

    Returns:
        The loss, detached.
    """
    if len(parts) == 1:
        loss = loss_of(parts[0]())
        torch.autograd.backward(loss)
        return loss.detach()
    with torch.no_grad(), _untracked(model):
        embeddings = [encode() for encode in parts]
    gathered = torch.cat(embeddings).requires_grad_()
    loss = loss_of(gathered)
    (gradient,) = torch.autograd.grad(loss, gathered)
    shares = torch.split(gradient, [len(part) for part in embeddings])
    for number, (encode, share) in enumerate(zip(parts, shares), 1):
        with nullcontext() if number == len(parts) else without_sync(model):
            torch.autograd.backward(encode(), share)
    return loss.detach()


@contextmanager
def _untracked(model: nn.Module) -> Iterator[None]:
    """Normalise by the batch as in training without updating the running statistics."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
