"""Batches of an epoch: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.schedule import passes_of, steps_per_pass
from workloads.seeding import derive, random_order


@dataclass(frozen=True)
class Batch:
    """A global batch, divided into one contiguous part for each rank.

    ``rows`` (B,): indices of its pairs. ``bounds`` (ranks + 1,): rank r has ``rows[bounds[r]:bounds[r + 1]]``.
    """

    rows: NDArray[np.int64]
    bounds: Sequence[int]
    rank: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def own(self) -> slice:
        """This rank's part of ``rows``."""
        return slice(self.bounds[self.rank], self.bounds[self.rank + 1])

    @property
    def counts(self) -> list[int]:
        """Number of pairs of each rank."""
        return np.diff(self.bounds).tolist()


def batches(pairs: int, batch_size: int, runtime: Runtime, epoch: int) -> Iterator[Batch]:
    """The global batches of an epoch: one pass in random order, or ``runtime.steps_per_epoch`` steps."""
    ranks = runtime.world_size
    for number, steps in passes_of(epoch, steps_per_pass(pairs, batch_size), runtime.steps_per_epoch):
        order = random_order(pairs, derive(runtime.seed, "order", number))
        for step in steps:
            rows = order[step * batch_size : (step + 1) * batch_size]
            yield Batch(rows, [len(rows) * rank // ranks for rank in range(ranks + 1)], runtime.rank)
