"""The losses by name, as functions of the scores of a batch of views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from workloads.losses import contrastive
from workloads.simclr.params import Params

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


def settings(params: Params, classes: int) -> dict[str, Any]:
    """The parameters that the formula takes; ``alpha`` may still be "auc".

    Raises:
        ValueError: a default is to come from the number of classes and there are none.
    """
    by_classes = {"tau": 1 / max(1, classes), "beta": 1 - 1 / max(1, classes)}
    found = params.of_loss()
    for name, value in found.items():
        if value == "classes":
            if classes < 2:
                raise ValueError(
                    f"{name}=classes needs a dataset of several classes, {params.dataset!r} has {classes}. "
                    f"Set {name} to a number"
                )
            found[name] = by_classes[name]
    return found
