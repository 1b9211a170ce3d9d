"""Losses of a positive's score against a negative's.

A loss gives one value a positive, (B,), and the caller reduces: the gradient of a mean over a global batch is
then right for ragged batches, micro-batches and several workers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch.nn import functional

PairwiseLoss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def bpr_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Bayesian personalised ranking, ``-ln σ(x_ui - x_uj)``.

    Thesis (2.2), (3.4) and (4.1), with the minus sign that (4.1), an objective to maximise, leaves out.
    Rendle et al., UAI 2009, BPR-Opt. Neither overflows nor loses the tail for large differences.

    Args:
        positive: x_ui, (B,).
        negative: x_uj, (B,).

    Returns:
        (B,) in nats, at least 0.
    """
    return functional.softplus(negative - positive)


PAIRWISE: Mapping[str, PairwiseLoss] = {"bpr": bpr_loss}
"""The losses a parameter ``loss`` can name."""
