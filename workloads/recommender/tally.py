"""What an epoch's steps add up to, kept on the device until the epoch ends."""

from __future__ import annotations

import math

import torch

from workloads.contract import Runtime
from workloads.distributed import reduce_sum
from workloads.losses.pairwise import DPL_FLOOR
from workloads.recommender.params import Params
from workloads.recommender.prepared import Prepared
from workloads.recommender.quality import SamplingQuality

_CLAMPED = -math.log(DPL_FLOOR) - 1e-5
"""From here on a loss of dpl has reached its floor of P̂ (E-5.18b)."""


def tells_quality(params: Params, runtime: Runtime) -> bool:
    """Whether sampling quality is asked for and can be told: a refit has trained on the validation part."""
    return params.quality and (runtime.holdout or params.truth != "validation")


class Tally:
    """Mean loss, sampling quality where it is asked for, and how many interactions dpl gives no gradient."""

    def __init__(self, params: Params, data: Prepared, runtime: Runtime) -> None:
        self._n_users = data.n_users
        self._loss = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self._count = 0
        clamps = params.loss == "dpl" and params.positives  # without them the loss has no floor
        self._clamped = torch.zeros((), dtype=torch.int64, device=runtime.device) if clamps else None
        self._quality: SamplingQuality | None = None
        if tells_quality(params, runtime):
            assert params.truth is not None
            self._quality, self._liked = SamplingQuality(runtime.device), data.liked(params.truth)

    def add(self, losses: torch.Tensor, total: torch.Tensor) -> None:
        """The losses (b,) of a micro-batch and their sum. Nothing is read here, which would wait for every step."""
        self._loss += total.detach()
        self._count += len(losses)
        if self._clamped is not None:
            self._clamped += (losses.detach() >= _CLAMPED).sum()

    def sampled(self, scores: torch.Tensor, nodes: torch.Tensor, extras: int) -> None:
        """The scores and nodes of a micro-batch, of which the last are the negatives."""
        if self._quality is None:
            return
        negatives, items = scores.detach()[1 + extras :], nodes[2 + extras :] - self._n_users
        liked = self._liked.contains(nodes[0].expand_as(items), items)
        self._quality.add(scores.detach()[0].expand_as(negatives).flatten(), negatives.flatten(), liked.flatten())

    def metrics(self) -> dict[str, float]:
        """Of the epoch, over all workers. A collective."""
        loss, count = reduce_sum(torch.stack([self._loss, self._loss.new_tensor(self._count)])).tolist()
        found = {"loss": loss / count}
        if self._clamped is not None:
            found["clamped"] = reduce_sum(self._clamped).item() / count
        if self._quality is not None:
            found |= SamplingQuality.measures(reduce_sum(self._quality.sums()))
        return found
