"""Values of training steps, kept on the device and copied to the host once for several steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from workloads.contract import StepValues
from workloads.distributed import reduce_sum


class StepLog:
    """Means of a loss over each ``every`` steps of an epoch, and over the rest at its end; 0: nothing is kept.

    All ranks call each method equally often: a mean is of all of them. ``members``: the number of trials of a pack,
    whose values are copied together.
    """

    def __init__(self, every: int, device: torch.device, members: int = 1) -> None:
        self._every = every
        self._total = torch.zeros(members, dtype=torch.float64, device=device)
        self._count = 0
        self._step = 0
        self._values: list[list[StepValues]] = [[] for _ in range(members)]

    def add(self, step: int, share: torch.Tensor, scale: float = 1.0, last: bool = True) -> None:
        """Add the loss of ``step``, counted from 1: ``scale * share``, () or (members,), summed over ranks.

        ``last``: False for a micro-batch that others of the step follow.
        """
        if not self._every:
            return
        self._total.add_(share.detach(), alpha=scale)
        self._step = step
        if last:
            self._count += 1
        if self._count == self._every:
            self._copy()

    def take(self, member: int = 0, after: int = 0) -> list[StepValues]:
        """A member's values since the last call, their steps counted from ``after`` + 1."""
        if self._count:
            self._copy()
        values = self._values[member]
        self._values[member] = []
        return [replace(one, step=after + one.step) for one in values]

    def extend(self, values: Sequence[StepValues]) -> None:
        """Append the values that another log has of this workload."""
        self._values[0] += values

    def _copy(self) -> None:
        now = time.time()
        for values, total in zip(self._values, reduce_sum(self._total).tolist()):
            values.append(StepValues(self._step, now, {"loss": total / self._count}))
        self._total.zero_()
        self._count = 0
