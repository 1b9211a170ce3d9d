"""The losses by name, as functions of the scores of a batch of views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from workloads.losses import contrastive

Objective: TypeAlias = Callable[..., torch.Tensor]
"""From the positive's score (A,), the negatives' (A, N) and, by name, what the loss reads, to one value an anchor."""


def _dcl(positive: torch.Tensor, negatives: torch.Tensor, **settings: Any) -> torch.Tensor:
    """K = 1: the other view is the only known positive (E-DCL)."""
    return contrastive.dcl_loss(positive, negatives, positive.unsqueeze(1), floor="cosine", **settings)


def _hcl(positive: torch.Tensor, negatives: torch.Tensor, **settings: Any) -> torch.Tensor:
    return contrastive.hcl_loss(positive, negatives, positive.unsqueeze(1), floor="cosine", **settings)


OBJECTIVES: Mapping[str, Objective] = {
    "infonce": contrastive.infonce_loss,
    "decoupled": contrastive.decoupled_loss,
    "dcl": _dcl,
    "hcl": _hcl,
    "bcl": contrastive.bcl_loss,
}
"""The losses that a parameter ``loss`` can name."""
