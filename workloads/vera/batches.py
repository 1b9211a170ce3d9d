"""The global batches of an epoch, and each rank's part of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.schedule import own_or_stand_in, passes_of, steps_per_pass
from workloads.seeding import derive


def batches(
    queries: NDArray[np.int64], batch_size: int, steps: int, epoch: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """The queries of each of the ``steps`` global batches of ``epoch``. Each pass has its own random order."""
    for number, steps_of_pass in passes_of(epoch, steps_per_pass(len(queries), batch_size), steps):
        order = np.random.Generator(np.random.PCG64(derive(seed, "order", number))).permutation(queries)
        for step in steps_of_pass:
            yield order[step * batch_size : (step + 1) * batch_size]


def micro_batches(batch: NDArray[np.int64], runtime: Runtime) -> list[tuple[NDArray[np.int64], float]]:
    """This rank's contiguous part of a global batch, in up to ``runtime.accumulate`` non-empty parts of weight 1.

    A rank without a query in a small batch gets a stand-in query of weight 0.
    """
    own, weight = own_or_stand_in(batch, runtime.rank, runtime.world_size)
    return [(part, float(weight > 0)) for part in np.array_split(own, runtime.accumulate) if len(part)]
