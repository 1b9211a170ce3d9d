"""Which queries an epoch trains on, in global batches, and which of them a rank reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.schedule import own_part, passes_of, steps_per_pass
from workloads.seeding import derive


def batches(
    queries: NDArray[np.int64], batch_size: int, steps: int, epoch: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """The numbers of the queries of each global batch of ``epoch``, the next ``steps`` of passes in random orders."""
    for number, places in passes_of(epoch, steps_per_pass(len(queries), batch_size), steps):
        order = np.random.Generator(np.random.PCG64(derive(seed, "order", number))).permutation(queries)
        for place in places:
            yield order[place * batch_size : (place + 1) * batch_size]


def micro_batches(batch: NDArray[np.int64], runtime: Runtime) -> list[tuple[NDArray[np.int64], float]]:
    """This rank's contiguous part of a global batch in ``runtime.accumulate`` parts, none of them empty, of weight 1.

    On a rank which has no query of a small batch one stands in, of weight 0.
    """
    own = batch[own_part(len(batch), runtime.rank, runtime.world_size)]
    if not len(own):
        return [(batch[:1], 0.0)]
    return [(part, 1.0) for part in np.array_split(own, runtime.accumulate) if len(part)]
