"""Training batches as a pure function of seed and epoch: positives, extra positives, negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from workloads.contract import Runtime
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.model import Choose
from workloads.sampling.negatives import Key, permutation, random_bits
from workloads.sampling.sampler import Sampler, View, counters
from workloads.schedule import passes_of, steps_per_pass
from workloads.seeding import derive, generator

_AT_ONCE = {"cpu": 2**17, "cuda": 2**22}  # nodes drawn at once: on a CPU as many as fit its cache


@dataclass(frozen=True, slots=True)
class Draws:
    """What is drawn for each interaction of user u with item i.

    ``negatives``: N. ``extras``: M other items of u or, with ``of_item``, M other users of i.
    """

    sampler: Sampler
    negatives: int = 1
    extras: int = 0
    of_item: bool = False

    @property
    def rounds(self) -> int:
        """Number of draws of the sampler per interaction."""
        return 1 if self.sampler.once else self.negatives

    @property
    def width(self) -> int:
        """Number of nodes per interaction."""
        return 2 + self.extras + self.rounds * self.sampler.width


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A rank's part of a global batch, or a micro-batch of it: b interactions.

    ``nodes``: (width, b) int64 of user, item, extras and what the sampler drew (item i is node n_users + i).
    ``rows``: indices into the data's pairs, (b,). ``positions``: positions in the pass, (b,). ``key``: for draws
    made during the step. ``step``: number of the step in its pass. ``users``, ``items``: the users and positive items
    of the global batch, as nodes, (size,). ``size``: interactions in the global batch; b is 0 on some ranks of a batch
    smaller than the world. ``part``: number of this part, of the ``parts`` of the global batch.
    """

    nodes: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    key: int
    step: int
    users: torch.Tensor
    items: torch.Tensor
    size: int
    part: int = 0
    parts: int = 1

    def split(self, parts: int) -> list[Batch]:
        """Split into micro-batches."""
        if parts == 1:
            return [self]
        columns = (self.nodes.tensor_split(parts, 1), self.rows.tensor_split(parts), self.positions.tensor_split(parts))
        return [
            replace(self, nodes=nodes, rows=rows, positions=at, part=self.part * parts + part, parts=self.parts * parts)
            for part, (nodes, rows, at) in enumerate(zip(*columns))
        ]


def batches(data: RecommenderData, draws: Draws, batch_size: int, runtime: Runtime, epoch: int) -> Iterator[Batch]:
    """This rank's contiguous part of each global batch of ``epoch``.

    An epoch is a pass over the interactions in a random order, or the next ``runtime.steps_per_epoch`` steps of
    such passes. The nodes at position p of a pass do not depend on the number of ranks.
    """
    for number, steps in passes_of(epoch, steps_per_pass(data.pairs.shape[1], batch_size), runtime.steps_per_epoch):
        key = derive(runtime.seed, "choice", number)
        drawn = _draw(data, draws, batch_size, [(runtime.seed, number)], steps, runtime.rank, runtime.world_size)
        for at, (nodes, rows, positions, pairs) in enumerate(drawn, steps.start):
            users, items = pairs.squeeze(1).unbind()
            part = (nodes.squeeze(1), rows.squeeze(0), positions, key, at, users, items)
            yield Batch(*part, len(items), runtime.rank, runtime.world_size)


def packed_nodes(
    data: RecommenderData, draws: Draws, batch_size: int, passes: Sequence[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """The nodes of several trials, stacked; each as in :func:`batches` for its seed and epoch.

    Args:
        passes: (seed, epoch) of each of K trials.

    Yields:
        (width, K, b) int64.
    """
    drawn = _draw(data, draws, batch_size, passes, range(steps_per_pass(data.pairs.shape[1], batch_size)))
    return (nodes for nodes, *_ in drawn)


def _draw(
    data: RecommenderData,
    draws: Draws,
    batch_size: int,
    passes: Sequence[tuple[int, int]],
    batches: range,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of K passes, stacked; each pass is given by its seed and number.

    Yields:
        Nodes (width, K, b), rows (K, b), positions (b,), and the pairs of the global batch (2, K, size).
    """
    device = data.pairs.device
    n = data.pairs.shape[1]
    orders = torch.stack([_order(seed, number, n, device) for seed, number in passes])
    at_once = max(1, _AT_ONCE.get(device.type, _AT_ONCE["cpu"]) // (draws.width * batch_size * len(passes)))
    for first in range(batches.start, batches.stop, at_once):
        numbers = range(first, min(first + at_once, batches.stop))
        sizes = [min(batch_size, n - batch * batch_size) for batch in numbers]
        parts = [
            torch.arange(
                batch * batch_size + size * rank // world,
                batch * batch_size + size * (rank + 1) // world,
                device=device,
            )
            for batch, size in zip(numbers, sizes)
        ]
        lengths = [len(part) for part in parts]
        positions = torch.cat(parts)
        rows = orders.index_select(1, positions)
        nodes = _nodes(data, draws, passes, rows, positions)
        all_rows = orders[:, first * batch_size : first * batch_size + sum(sizes)]
        pairs = nodes[:2] if world == 1 else data.pairs[:, all_rows.flatten()].view(2, len(passes), -1)
        yield from zip(
            torch.split(nodes, lengths, dim=2),
            torch.split(rows, lengths, dim=1),
            torch.split(positions, lengths),
            torch.split(pairs, sizes, dim=2),
        )


def _nodes(
    data: RecommenderData, draws: Draws, passes: Sequence[tuple[int, int]], rows: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """The nodes of K passes for ``rows`` (K, b) at ``positions`` (b,); (width, K, b)."""
    users, items = (side.index_select(0, rows.flatten()) for side in data.pairs)
    positions = positions.repeat(len(passes))
    keys = _keys(passes, "negatives", rows, draws.rounds)
    drawn = draws.sampler.draw(users.repeat(draws.rounds), counters(positions, draws.rounds), keys)
    parts = [users.unsqueeze(0), items.unsqueeze(0)]
    if draws.extras:
        parts.append(_extras(data, draws, passes, rows, positions))
    parts.append(drawn.view(draws.rounds * draws.sampler.width, len(users)) + data.n_users)
    return torch.cat(parts).view(draws.width, *rows.shape)


def _extras(
    data: RecommenderData, draws: Draws, passes: Sequence[tuple[int, int]], rows: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Draw M extra positives per interaction with replacement, as nodes, (M, K·b)."""
    keys = _keys(passes, "positives", rows, draws.extras)
    bits = random_bits(keys, counters(positions, draws.extras)).view(draws.extras, -1)
    rows = rows.flatten()
    if draws.of_item:
        items = data.pairs[1].index_select(0, rows) - data.n_users
        return data.chosen_by.others(items, data.list_positions[1].index_select(0, rows), bits)
    users = data.pairs[0].index_select(0, rows)
    return data.observed.others(users, data.list_positions[0].index_select(0, rows), bits) + data.n_users


def _keys(passes: Sequence[tuple[int, int]], stream: str, rows: torch.Tensor, count: int) -> Key:
    """The key of a single pass, or one key for each of ``count`` draws per row (K, b)."""
    keys = [derive(seed, stream, number) for seed, number in passes]
    if len(keys) == 1:
        return keys[0]
    return torch.tensor(keys, device=rows.device).repeat_interleave(rows.shape[1]).repeat(count)


@lru_cache(maxsize=1)  # short virtual epochs share their pass
def _order(seed: int, number: int, n: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.randperm(n, generator=generator(seed, "order", number))
    return permutation(derive(seed, "order", number), n, device)


def choice(draws: Draws, batch: Batch, epoch: int, n_users: int) -> Choose | None:
    """A function that chooses the negatives among a batch's candidates; None if the sampler is not dynamic."""
    sampler = draws.sampler
    fixed = 2 + draws.extras
    count = draws.negatives
    if not sampler.dynamic:
        return None

    def choose(table: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        if not nodes.shape[1]:  # the last batch has fewer interactions than ranks and micro-batches
            return nodes.new_empty(fixed + count, 0)
        pairs = nodes[:2].repeat(1, count) if count > 1 else nodes
        view = View(
            users=pairs[0],
            items=pairs[1],
            candidates=nodes[fixed:].reshape(sampler.width, draws.rounds * nodes.shape[1]),
            positions=batch.positions,
            key=batch.key,
            step=batch.step,
            batch=batch.items,
            epoch=epoch,
            table=table,
            n_users=n_users,
            count=count,
        )
        return torch.cat([nodes[:fixed], sampler.choose(view).view(count, -1)])

    return choose
