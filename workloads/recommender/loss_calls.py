"""The losses by name: which scores and which parameters each of them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from workloads.losses import contrastive, pairwise
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


Objective: TypeAlias = Callable[..., torch.Tensor]
"""From scores and, by name, the parameters that the loss reads, to one value a positive, (B,)."""


def _dcl(x: Scores, *, positives: int, **settings: Any) -> torch.Tensor:
    return contrastive.dcl_loss(x.positive, x.negatives, x.positives[:, :positives], **settings)


def _hcl(x: Scores, *, positives: int, **settings: Any) -> torch.Tensor:
    return contrastive.hcl_loss(x.positive, x.negatives, x.positives[:, :positives], **settings)


def _mpr(x: Scores, *, lam: float) -> torch.Tensor:
    viewed, unobserved = x.extra.unbind(1), x.negatives.unbind(1)
    return pairwise.mpr_loss(x.positive, (viewed[0], viewed[1]), (unobserved[0], unobserved[1]), lam=lam)


def _truncated(x: Scores, *, drop_rate: float, drop_steps: int) -> torch.Tensor:
    share = pairwise.truncated_share(x.step, maximum=drop_rate, steps=drop_steps)
    return pairwise.truncated_bce_loss(x.positive, x.negative, share)


OBJECTIVES: Mapping[str, Objective] = {
    "bpr": lambda x: pairwise.bpr_loss(x.positive, x.negative),
    "bce": lambda x: pairwise.bce_loss(x.positive, x.negative),
    "infonce": lambda x, **settings: contrastive.infonce_loss(x.positive, x.negatives, **settings),
    "decoupled": lambda x, **settings: contrastive.decoupled_loss(x.positive, x.negatives, **settings),
    "dcl": _dcl,
    "hcl": _hcl,
    "dpl": lambda x, *, tau: pairwise.dpl_loss(x.positive, x.negatives, x.extra, tau=tau),
    "bcl": lambda x, **settings: contrastive.bcl_loss(x.positive, x.negatives, **settings),
    "gbpr": lambda x, *, rho: pairwise.gbpr_loss(x.positive, x.positives, x.negative, rho=rho),
    "mpr": _mpr,
    "denoise_truncated": _truncated,
    "denoise_reweighted": lambda x, *, beta: pairwise.reweighted_bce_loss(x.positive, x.negative, beta),
    "denoise_truncated_bpr": lambda x, *, threshold: pairwise.truncated_bpr_loss(x.positive, x.negative, threshold),
    "bprac": lambda x: pairwise.bpr_loss(x.positive, x.negative),  # weighted by credence, (3.29)
}
"""The losses that a parameter ``loss`` can name."""

OF_BATCH = {"denoise_truncated"}
"""Losses that compare the samples of a batch with one another, which therefore can not be split."""

POINTWISE = {"bpr", "bce", "denoise_reweighted", "denoise_truncated_bpr"}
"""Losses of one positive and one negative, each pair for itself."""

_COUNTS = {"negatives", "group", "credence", "prior_var"}
"""Parameters of a loss that its draws or its weights read, not its formula."""


def draws(params: Params) -> tuple[int, int]:
    """N and M: how many negatives and further positives (or users, of gbpr) an interaction needs."""
    if params.loss == "mpr":
        return 2, 2
    extras = params.positives or 0
    if params.loss in ("dcl", "hcl"):
        extras = max(0, extras - 1)  # the positive is the first
    if params.group:
        extras = params.group - 1  # the user is one of them
    return params.negatives or 1, extras


def settings(params: Params, density: float) -> dict[str, Any]:
    """The parameters that the formula takes; ``alpha`` may still be "auc" or "auc_literal"."""
    found = {name: value for name, value in params.of_loss().items() if name not in _COUNTS}
    if params.loss == "dpl":
        del found["positives"]
    if found.get("tau") == "density":
        found["tau"] = density
    return found
