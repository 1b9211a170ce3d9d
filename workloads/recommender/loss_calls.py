"""The scores of a batch, and the losses that need more than a call of their formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from workloads.losses import contrastive, pairwise
from workloads.recommender.losses import LOSSES
from workloads.recommender.params import Params


class Scores(NamedTuple):
    """Of B positives: ``positive`` (B,), ``extra`` (B, M), ``negatives`` (B, N); ``step`` counts steps from 0."""

    positive: torch.Tensor
    extra: torch.Tensor
    negatives: torch.Tensor
    step: int

    @property
    def negative(self) -> torch.Tensor:
        """The first negative, (B,)."""
        return self.negatives[:, 0]

    @property
    def positives(self) -> torch.Tensor:
        """The positive itself and the extra ones, (B, 1 + M)."""
        return torch.cat([self.positive.unsqueeze(1), self.extra], 1)


def hcl_loss(
    positive: torch.Tensor,
    negatives: torch.Tensor,
    observed: torch.Tensor,
    *,
    positives: int,
    temperature: float,
    tau: float,
    beta: float = 0,
) -> torch.Tensor:
    """HCL, or DCL (β = 0), of the first ``positives`` ones of ``observed`` (B, 1 + M), the own one first (E-DCL)."""
    chosen = observed[:, :positives]
    return contrastive.hcl_loss(positive, negatives, chosen, temperature=temperature, tau=tau, beta=beta)


def mpr_loss(positive: torch.Tensor, extra: torch.Tensor, negatives: torch.Tensor, *, lam: float) -> torch.Tensor:
    """MPR of two viewed items ``extra`` (B, 2) and two unobserved ones ``negatives`` (B, 2)."""
    return pairwise.mpr_loss(positive, (extra[:, 0], extra[:, 1]), (negatives[:, 0], negatives[:, 1]), lam=lam)


def truncated_loss(
    positive: torch.Tensor, negative: torch.Tensor, step: int, *, drop_rate: float, drop_steps: int
) -> torch.Tensor:
    """The truncated cross entropy, whose dropped share rises to ``drop_rate`` over ``drop_steps`` steps."""
    return pairwise.truncated_bce_loss(
        positive, negative, pairwise.truncated_share(step, maximum=drop_rate, steps=drop_steps)
    )


def loss_settings(params: Params, density: float) -> Mapping[str, Any]:
    """The parameters of the loss's formula; ``alpha`` may still be "auc" or "auc_literal".

    Args:
        density: of the training interactions, for ``tau=density``.
    """
    settings = {name: getattr(params, name) for name in LOSSES[params.loss].keywords}
    return settings | ({"tau": density} if settings.get("tau") == "density" else {})
