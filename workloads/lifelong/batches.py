"""The training queries of each step with one positive each: a pure function of the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.schedule import own_or_stand_in, passes_of, steps_per_pass
from workloads.seeding import derive, random_order


def batches(
    positives: Sequence[NDArray[np.int64]], batch_size: int, runtime: Runtime, epoch: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
    """This rank's part of each global batch of an epoch.

    Yields the indices of the queries (b,), a positive document of each (b,), and the weight of a query in the mean. A
    rank without a query in a small last batch gets a stand-in query of weight 0. An epoch is one pass in random order,
    or ``runtime.steps_per_epoch`` steps of consecutive passes.
    """
    counts = np.array([len(docs) for docs in positives])
    for number, steps in passes_of(epoch, steps_per_pass(len(positives), batch_size), runtime.steps_per_epoch):
        order = random_order(len(counts), derive(runtime.seed, "order", number))
        # NumPy guarantees the raw stream of PCG64 across versions.
        draws = np.random.PCG64(derive(runtime.seed, "positive", number)).random_raw(len(counts))
        choice = (draws % counts.astype(np.uint64)).astype(np.int64)
        docs = np.array([own[which] for own, which in zip(positives, choice.tolist())], np.int64)
        for step in steps:
            rows = order[step * batch_size : (step + 1) * batch_size]
            own_rows, weight = own_or_stand_in(rows, runtime.rank, runtime.world_size)
            yield own_rows, docs[own_rows], weight
