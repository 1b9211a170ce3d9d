"""What earlier methods remember and replay, on the blocks of :mod:`workloads.lifelong.selection`.

Each of them was made for a classifier with one buffer. Here an example is a query with its positive and one negative,
and every query has a buffer of its own, as L2R has it; gradients are those of the pairwise loss with respect to the
query's vector, the last thing before the score.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import normalize, softplus


def pair_losses(docs: torch.Tensor, positive: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(f(q, d) - f(q, d+))) of each document as the only negative. (Q, n, d), (Q, d), (Q, d) -> (Q, n)."""
    return softplus(((docs - positive.unsqueeze(1)) @ query.unsqueeze(2)).squeeze(2))


def pair_gradients(docs: torch.Tensor, positive: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The gradient of :func:`pair_losses` with respect to the query's vector, (Q, n, d)."""
    difference = docs - positive.unsqueeze(1)
    return torch.sigmoid(difference @ query.unsqueeze(2)) * difference


@torch.no_grad()
def virtual_step(
    module: nn.Module, losses: Callable[[], torch.Tensor], backward: Callable[[], None], lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses before and after one step of gradient descent that is taken back: the module is as it was.

    Args:
        module: has no gradients yet, and none afterwards.
        losses: by the module as it is, without a gradient.
        backward: adds the gradients to step along.
        lr: of the step.
    """
    before = losses()
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.enable_grad():
        backward()
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.sub_(lr * parameter.grad)
            parameter.grad = None
    after = losses()
    module.load_state_dict(kept)
    return before, after


def mir(before: torch.Tensor, after: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Maximally interfered retrieval: how much a virtual step on the new data raises each example's loss.

    Aljundi et al., Online Continual Learning with Maximal Interfered Retrieval, NeurIPS 2019.

    Args:
        before: losses by the model as it is, (Q, n).
        after: losses by the model after the step, (Q, n).
        there: (Q, n).
    """
    return (after - before).masked_fill(~there, -torch.inf)


def gss(gradients: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Gradient-based sample selection, the greedy form: how unlike each gradient is to every one before it.

    Aljundi et al., Gradient based sample selection for online continual learning, NeurIPS 2019. Put what is in the
    memory first, so that a newcomer is compared with it.

    Args:
        gradients: (Q, n, d).
        there: (Q, n).

    Returns:
        1 - the highest cosine with an example before it, (Q, n): 2 for the first, -inf for filling.
    """
    directions = normalize(gradients, dim=2)
    cosines = (directions @ directions.mT).masked_fill(~there.unsqueeze(1), -1)
    before = torch.ones_like(cosines, dtype=torch.bool).tril(-1)
    nearest = torch.where(before, cosines, -1.0).amax(2)
    return (1 - nearest).masked_fill(~there, -torch.inf)


def ocs(
    gradients: torch.Tensor, there: torch.Tensor, kept: torch.Tensor, kept_there: torch.Tensor, affinity: float = 1.0
) -> torch.Tensor:
    """Online coreset selection: minibatch similarity + sample diversity + affinity to what is kept.

    Yoon et al., Online Coreset Selection for Rehearsal-based Continual Learning, ICLR 2022, (3) to (6).

    Args:
        gradients: of the candidates, (Q, n, d).
        there: (Q, n).
        kept: gradients of the coreset, (Q, m, d).
        kept_there: (Q, m).
        affinity: the weight of the third, their tau.

    Returns:
        (Q, n), -inf for filling.
    """
    directions = normalize(gradients, dim=2).masked_fill(~there.unsqueeze(2), 0)
    similarity = (directions @ _mean(gradients, there).unsqueeze(2)).squeeze(2)
    count = there.sum(1, keepdim=True)
    others = (directions @ directions.mT).sum(2) - directions.square().sum(2)
    diversity = -others / (count - 1).clamp(min=1)
    close = (directions @ _mean(kept, kept_there).unsqueeze(2)).squeeze(2)
    return (similarity + diversity + affinity * close).masked_fill(~there, -torch.inf)


def uniform(docs: NDArray[np.int64], rows: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for every pair of a query and a document, always the same one under a seed.

    Keeping those of the highest numbers is reservoir sampling: at any time a uniform sample of all that came by (ER;
    Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019).

    Args:
        docs: (Q, n), -1 for filling.
        rows: number of each query, (Q,).
        seed: 63 bits.

    Returns:
        (Q, n), -inf for filling.
    """
    mixed = docs.astype(np.uint64) + (rows.astype(np.uint64)[:, None] << np.uint64(32)) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64 (Steele et al., 2014)
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.where(docs < 0, -np.inf, (mixed >> np.uint64(11)) / 2.0**53)


def _mean(gradients: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """The direction of the mean gradient, (Q, d); zero for an empty set."""
    return normalize(gradients.masked_fill(~there.unsqueeze(2), 0).sum(1), dim=1)
