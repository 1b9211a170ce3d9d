"""Metrics of a training epoch, accumulated on the device."""

from __future__ import annotations

import math

import torch

from workloads.contract import Runtime
from workloads.distributed import reduce_sum
from workloads.losses.pairwise import DPL_FLOOR
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.params import Params
from workloads.recommender.quality import SamplingQuality

_CLAMPED = -math.log(DPL_FLOOR) - 1e-5
"""Loss of dpl from which P̂ is at its floor (E-5.18b)."""


def can_measure_quality(params: Params, runtime: Runtime) -> bool:
    """Whether sampling quality is requested and can be measured; a refit has trained on the validation part."""
    return params.quality and (runtime.holdout or params.truth != "validation")


class EpochMetrics:
    """Mean loss, quality of the negatives, and the share of interactions without gradient (dpl)."""

    def __init__(self, params: Params, data: RecommenderData, runtime: Runtime) -> None:
        device = runtime.device
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._count = 0
        clamps = params.loss == "dpl" and params.positives  # without them the loss has no floor
        self._clamped = torch.zeros((), dtype=torch.int64, device=device) if clamps else None
        self._quality: SamplingQuality | None = None
        if can_measure_quality(params, runtime):
            assert params.truth is not None
            self._quality = SamplingQuality(device)
            self._liked = data.liked(params.truth)
        self._contrast: torch.Tensor | None = None
        if params.contrast is not None:
            self._contrast = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = 0.0
        self._planted = data.planted
        self._false = torch.zeros(2, dtype=torch.int64, device=device)  # false negatives, all negatives

    def add(self, losses: torch.Tensor, total: torch.Tensor) -> None:
        """Add the losses (b,) of a micro-batch and their sum, without waiting for the device."""
        self._loss += total.detach()
        self._count += len(losses)
        if self._clamped is not None:
            self._clamped += (losses.detach() >= _CLAMPED).sum()

    def add_contrast(self, term: torch.Tensor, parts: int) -> None:
        """Add the share of a step's contrastive term that one of ``parts`` parts of the batch has."""
        assert self._contrast is not None
        self._contrast += term.detach()
        self._steps += 1 / parts

    @property
    def needs_negatives(self) -> bool:
        """Whether :meth:`add_negatives` has anything to measure."""
        return self._planted is not None or self._quality is not None

    def add_negatives(
        self, positive: torch.Tensor, negatives: torch.Tensor, users: torch.Tensor, items: torch.Tensor
    ) -> None:
        """Add scores of positives (b,) and negatives (N, b), -inf if masked, of users (b,) and items (N, b)."""
        negatives = negatives.detach()
        users = users.expand_as(items)
        if self._planted is not None:
            sampled = negatives > -math.inf
            liked = self._planted.contains(users, items) & sampled
            self._false += torch.stack([liked.sum(), sampled.sum()])
        if self._quality is not None:
            liked = self._liked.contains(users, items)
            self._quality.add(positive.detach().expand_as(negatives).flatten(), negatives.flatten(), liked.flatten())

    def metrics(self) -> dict[str, float]:
        """Metrics of the epoch over all workers. A collective."""
        loss, count = reduce_sum(torch.stack([self._loss, self._loss.new_tensor(self._count)])).tolist()
        metrics = {"loss": loss / count}
        if self._clamped is not None:
            metrics["clamped"] = reduce_sum(self._clamped).item() / count
        if self._contrast is not None:
            term, steps = reduce_sum(torch.stack([self._contrast, self._contrast.new_tensor(self._steps)])).tolist()
            metrics["contrast"] = term / steps
        if self._quality is not None:
            metrics |= SamplingQuality.measures(reduce_sum(self._quality.sums))
        if self._planted is not None:
            false, count = reduce_sum(self._false).tolist()
            metrics["fnr"] = false / max(1, count)
        return metrics
