"""What an epoch's steps add up to, kept on the device until the epoch ends."""

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
"""From here on a loss of dpl has reached its floor of P̂ (E-5.18b)."""


def can_measure_quality(params: Params, runtime: Runtime) -> bool:
    """Whether sampling quality is asked for and can be told: a refit has trained on the validation part."""
    return params.quality and (runtime.holdout or params.truth != "validation")


class EpochMetrics:
    """Mean loss, quality of the negatives where it can be told, and how many interactions dpl gives no gradient."""

    def __init__(self, params: Params, data: RecommenderData, runtime: Runtime) -> None:
        device = runtime.device
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._count = 0
        clamps = params.loss == "dpl" and params.positives  # without them the loss has no floor
        self._clamped = torch.zeros((), dtype=torch.int64, device=device) if clamps else None
        self._quality: SamplingQuality | None = None
        if can_measure_quality(params, runtime):
            assert params.truth is not None
            self._quality, self._liked = SamplingQuality(device), data.liked(params.truth)
        self._planted = data.planted
        self._false = torch.zeros(2, dtype=torch.int64, device=device)  # and all

    def add(self, losses: torch.Tensor, total: torch.Tensor) -> None:
        """The losses (b,) of a micro-batch and their sum. Nothing is read here, which would wait for every step."""
        self._loss += total.detach()
        self._count += len(losses)
        if self._clamped is not None:
            self._clamped += (losses.detach() >= _CLAMPED).sum()

    @property
    def needs_negatives(self) -> bool:
        """Whether there is anything to measure of the negatives: :meth:`add_negatives` is needed."""
        return self._planted is not None or self._quality is not None

    def add_negatives(
        self, positive: torch.Tensor, negatives: torch.Tensor, users: torch.Tensor, items: torch.Tensor
    ) -> None:
        """Scores of a micro-batch's positives (b,) and negatives (N, b), -inf for none; users (b,) and items (N, b)."""
        negatives, users = negatives.detach(), users.expand_as(items)
        if self._planted is not None:
            sampled = negatives > -math.inf
            liked = self._planted.contains(users, items) & sampled
            self._false += torch.stack([liked.sum(), sampled.sum()])
        if self._quality is not None:
            liked = self._liked.contains(users, items)
            self._quality.add(positive.detach().expand_as(negatives).flatten(), negatives.flatten(), liked.flatten())

    def metrics(self) -> dict[str, float]:
        """Of the epoch, over all workers. A collective."""
        loss, count = reduce_sum(torch.stack([self._loss, self._loss.new_tensor(self._count)])).tolist()
        found = {"loss": loss / count}
        if self._clamped is not None:
            found["clamped"] = reduce_sum(self._clamped).item() / count
        if self._quality is not None:
            found |= SamplingQuality.measures(reduce_sum(self._quality.sums))
        if self._planted is not None:
            false, count = reduce_sum(self._false).tolist()
            found["fnr"] = false / max(1, count)
        return found
