"""Which queries an epoch trains on, in global batches, and which of them a rank reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.schedule import steps_per_pass
from workloads.seeding import derive


def batches(
    queries: NDArray[np.int64], batch_size: int, steps: int, epoch: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """The numbers of the queries of each global batch of ``epoch``, from 1.

    It is the next so many ``steps`` of an endless row of passes in random orders: where it starts follows from its
    number.
    """
    per_pass = steps_per_pass(len(queries), batch_size)
    number, order = 0, queries
    for step in range((epoch - 1) * steps, epoch * steps):
        if step // per_pass + 1 != number:
            number = step // per_pass + 1
            bits = np.random.Generator(np.random.PCG64(derive(seed, "order", number)))
            order = bits.permutation(queries)
        first = step % per_pass * batch_size
        yield order[first : first + batch_size]


def micro_batches(batch: NDArray[np.int64], runtime: Runtime) -> list[tuple[NDArray[np.int64], float]]:
    """This rank's contiguous part of a global batch in ``runtime.accumulate`` parts, none of them empty, of weight 1.

    On a rank which has no query of a small batch one stands in, of weight 0.
    """
    start, stop = (len(batch) * rank // runtime.world_size for rank in (runtime.rank, runtime.rank + 1))
    if start == stop:
        return [(batch[:1], 0.0)]
    return [(part, 1.0) for part in np.array_split(batch[start:stop], runtime.accumulate) if len(part)]
