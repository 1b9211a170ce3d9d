"""Backward through a contrastive loss over a batch that is too large for one pass. Gao et al., RepL4NLP 2021."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workloads.distributed import without_sync

Encode = Callable[[], torch.Tensor]
"""Embeddings of a micro-batch, (b, ...), with their graph; it gives the same ones each time it is called."""


def backward(
    parts: Sequence[Encode], loss_of: Callable[[torch.Tensor], torch.Tensor], model: nn.Module
) -> torch.Tensor:
    """Gradients of a loss of all embeddings together, holding the graph of one micro-batch at a time.

    First all embeddings without graph; then the loss and its gradient to them; then each micro-batch once more, with
    that gradient. Loss and gradient are those of one pass, but for batch normalisation, whose statistics are a
    micro-batch's. Twice the forward work; the batch is then limited by what the loss itself takes: the embeddings,
    and of a contrastive one the scores of all pairs, O(B²).

    Args:
        parts: the micro-batches; one is an ordinary backward.
        loss_of: embeddings of all of them, in their order, (B, ...), to a scalar.
        model: what encodes, under DistributedDataParallel or not; gradients are exchanged with the last part.

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
    """Batch normalisation by the batch as in training, with its running statistics left alone."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
