"""Which (user, item, negative) triples each step of an epoch trains on: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from workloads.contract import Runtime
from workloads.recommender.prepared import Prepared
from workloads.sampling.negatives import Sampler
from workloads.seeding import derive, generator

_AT_ONCE = 2**20  # triples drawn at once, a few hundred bytes each


def triples(
    data: Prepared, sampler: Sampler, batch_size: int, runtime: Runtime, epoch: int
) -> Iterator[tuple[torch.Tensor, int]]:
    """This rank's part of each global batch of ``epoch``.

    An epoch is a pass over the interactions in a random order, or, with ``runtime.steps_per_epoch``, the next so
    many steps of an endless row of passes: where it starts follows from its number, so no state carries it.
    Position p of a pass holds the same triple whatever the number of ranks.

    Yields:
        Nodes (3, b) int64 of user, item and negative item (item i is node n_users + i), contiguous parts of the
        global batch by rank, and the size of the global batch. b is 0 on some ranks of a batch smaller than the
        world.
    """
    per_pass = -(-data.pairs.shape[1] // batch_size)
    steps = runtime.steps_per_epoch or per_pass
    step, end = (epoch - 1) * steps, epoch * steps
    while step < end:
        number, first = divmod(step, per_pass)
        last = min(per_pass, first + end - step, first + max(1, _AT_ONCE // batch_size))
        yield from _draw(data, sampler, batch_size, runtime, number + 1, range(first, last))
        step += last - first


def _draw(
    data: Prepared, sampler: Sampler, batch_size: int, runtime: Runtime, number: int, batches: range
) -> Iterator[tuple[torch.Tensor, int]]:
    """The triples of some batches of pass ``number``, drawn together."""
    seed, device, n = runtime.seed, runtime.device, data.pairs.shape[1]
    rank, world = runtime.rank, runtime.world_size
    sizes = [min(batch_size, n - batch * batch_size) for batch in batches]
    parts = [
        torch.arange(
            batch * batch_size + size * rank // world,
            batch * batch_size + size * (rank + 1) // world,
            device=device,
        )
        for batch, size in zip(batches, sizes)
    ]
    positions = torch.cat(parts)
    rows = _order(seed, number, n, device).index_select(0, positions)
    users, items = (side.index_select(0, rows) for side in data.pairs)
    negatives = sampler(data.unobserved, users, positions, derive(seed, "negatives", number))
    nodes = torch.stack([users, items, negatives + data.n_users])
    yield from zip(torch.split(nodes, [len(part) for part in parts], dim=1), sizes)


@lru_cache(maxsize=1)  # short virtual epochs share their pass
def _order(seed: int, number: int, n: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(n, generator=generator(seed, "order", number, device=device), device=device)
