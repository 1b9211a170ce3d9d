"""Scores by which earlier methods choose what to remember and replay. Blocks are as in ``selection.py``.

These methods were designed for a classifier with a single buffer. Here an example is a query with its positive and one
negative, and every query has its own buffer, as in L2R. Gradients are those of the pairwise loss with respect to the
query's vector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import normalize, softplus


def pair_losses(docs: torch.Tensor, positive: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(f(q, d) - f(q, d+))) for each document as the only negative. (Q, n, d), (Q, d), (Q, d) -> (Q, n)."""
    return softplus(((docs - positive.unsqueeze(1)) @ query.unsqueeze(2)).squeeze(2))


def pair_gradients(docs: torch.Tensor, positive: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The gradient of :func:`pair_losses` with respect to the query's vector, (Q, n, d)."""
    difference = docs - positive.unsqueeze(1)
    return torch.sigmoid(difference @ query.unsqueeze(2)) * difference


@torch.no_grad()
def virtual_step(
    module: nn.Module, losses: Callable[[], torch.Tensor], backward: Callable[[], None], lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses before and after one step of gradient descent. The step is undone, so the module does not change.

    Args:
        module: has no gradients before and after the call.
        losses: computes the losses of the current module, without gradients.
        backward: accumulates the gradients of the step.
        lr: learning rate of the step.
    """
    before = losses()
    saved = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.enable_grad():
        backward()
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.sub_(lr * parameter.grad)
            parameter.grad = None
    after = losses()
    module.load_state_dict(saved)
    return before, after


def mir(before: torch.Tensor, after: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Maximally interfered retrieval: by how much a virtual step on the new data raises each example's loss.

    Aljundi et al., Online Continual Learning with Maximal Interfered Retrieval, NeurIPS 2019.

    Args:
        before: losses before the step, (Q, n).
        after: losses after the step, (Q, n).
        mask: False for padding, (Q, n).
    """
    return (after - before).masked_fill(~mask, -torch.inf)


def gss(gradients: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Greedy gradient-based sample selection: how different each gradient is from all gradients before it.

    Aljundi et al., Gradient based sample selection for online continual learning, NeurIPS 2019. Put the memory's
    examples first, so that new examples are compared with them.

    Args:
        gradients: (Q, n, d).
        mask: False for padding, (Q, n).

    Returns:
        1 - the highest cosine with an earlier example, (Q, n): 2 for the first example, -inf for padding.
    """
    directions = normalize(gradients, dim=2)
    cosines = (directions @ directions.mT).masked_fill(~mask.unsqueeze(1), -1)
    before = torch.ones_like(cosines, dtype=torch.bool).tril(-1)
    nearest = torch.where(before, cosines, -1.0).amax(2)
    return (1 - nearest).masked_fill(~mask, -torch.inf)


def ocs(gradients: torch.Tensor, mask: torch.Tensor, coreset: torch.Tensor, coreset_mask: torch.Tensor) -> torch.Tensor:
    """Online coreset selection: minibatch similarity + sample diversity + affinity to the coreset.

    Yoon et al., Online Coreset Selection for Rehearsal-based Continual Learning, ICLR 2022, (3) to (6), with the
    affinity's weight τ = 1.

    Args:
        gradients: of the candidates, (Q, n, d).
        mask: False for padding, (Q, n).
        coreset: gradients of the coreset, (Q, m, d).
        coreset_mask: False for padding, (Q, m).

    Returns:
        (Q, n), -inf for padding.
    """
    directions = normalize(gradients, dim=2).masked_fill(~mask.unsqueeze(2), 0)
    similarity = (directions @ _mean(gradients, mask).unsqueeze(2)).squeeze(2)
    count = mask.sum(1, keepdim=True)
    others = (directions @ directions.mT).sum(2) - directions.square().sum(2)
    diversity = -others / (count - 1).clamp(min=1)
    close = (directions @ _mean(coreset, coreset_mask).unsqueeze(2)).squeeze(2)
    return (similarity + diversity + close).masked_fill(~mask, -torch.inf)


def uniform(docs: NDArray[np.int64], rows: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """A pseudorandom number in [0, 1) for every pair of a query and a document, a function of the pair and the seed.

    Keeping the documents with the highest numbers is reservoir sampling: a uniform sample of all documents so far (ER;
    Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019).

    Args:
        docs: (Q, n), -1 for padding.
        rows: index of each query, (Q,).
        seed: 63 bits.

    Returns:
        (Q, n), -inf for padding.
    """
    mixed = docs.astype(np.uint64) + (rows.astype(np.uint64)[:, None] << np.uint64(32)) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64 (Steele et al., 2014)
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.where(docs < 0, -np.inf, (mixed >> np.uint64(11)) / 2.0**53)


def _mean(gradients: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The direction of the mean gradient, (Q, d); zero for an empty set."""
    return normalize(gradients.masked_fill(~mask.unsqueeze(2), 0).sum(1), dim=1)
