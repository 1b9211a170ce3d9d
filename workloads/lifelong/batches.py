"""Which training queries each step takes, and which of its positives each query has, pure functions of the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.schedule import own_part, passes_of, steps_per_pass
from workloads.seeding import derive


def batches(
    positives: Sequence[NDArray[np.int64]], batch_size: int, runtime: Runtime, epoch: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
    """This rank's part of each global batch of an epoch: places of queries (b,), a positive of each (b,), and what a
    query weighs in the mean, 0 for one that stands in on a rank which has none of a small last batch.

    An epoch is a pass in a random order, or the next ``runtime.steps_per_epoch`` steps of an endless row of passes.
    """
    counts = np.array([len(docs) for docs in positives])
    for number, places in passes_of(epoch, steps_per_pass(len(positives), batch_size), runtime.steps_per_epoch):
        order = np.argsort(_raw(runtime.seed, "order", number, len(counts)), kind="stable")
        turn = (_raw(runtime.seed, "positive", number, len(counts)) % counts.astype(np.uint64)).astype(np.int64)
        docs = np.array([own[which] for own, which in zip(positives, turn.tolist())], np.int64)
        for place in places:
            rows = order[place * batch_size : (place + 1) * batch_size]
            own_rows, weight = rows[own_part(len(rows), runtime.rank, runtime.world_size)], 1 / len(rows)
            if not len(own_rows):
                own_rows, weight = rows[:1], 0.0
            yield own_rows, docs[own_rows], weight


def _raw(seed: int, stream: str, number: int, count: int) -> NDArray[np.uint64]:
    # The raw stream of PCG64, which NumPy keeps as it is.
    return np.random.PCG64(derive(seed, stream, number)).random_raw(count)
