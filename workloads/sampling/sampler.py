"""What a negative sampler is, and what the dynamic ones see of the model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from workloads.sampling.negatives import Key, Unobserved, subset, uniform

_AT_ONCE = 2**28
"""Embedding entries gathered at once."""

with warnings.catch_warnings(action="ignore"):  # PyTorch says once in a process that CSR is "in beta state"
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), check_invariants=False)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A step as a dynamic sampler sees it: B pairs of a user and a positive item, each of which needs a negative.

    Where a positive has several negatives, all pairs come ``count`` times, one round after the other. Users and items
    are nodes of one numbering, in which item i is node ``n_users`` + i.

    ``users``, ``items``: (B,). ``candidates``: what the sampler drew ahead, (C, B), or (C, B / count) of one that draws
    ``once``. ``positions``: (B / count,), of the positives in their pass, whose ``key`` it is. ``step``: number of the
    step within the pass. ``batch``: positive items of the whole batch, all workers', (b,). ``epoch``: from 1.
    ``table``: final embeddings of the nodes, (U + I, d), without gradient.
    """

    users: torch.Tensor
    items: torch.Tensor
    candidates: torch.Tensor
    positions: torch.Tensor
    key: int
    step: int
    batch: torch.Tensor
    epoch: int
    table: torch.Tensor
    n_users: int
    count: int = 1

    @property
    def counters(self) -> torch.Tensor:
        """One for each pair of a pass, (B,), int64: draws made in a step are pure functions of these and the key."""
        return counters(self.positions, self.count)

    @property
    def owners(self) -> torch.Tensor:
        """The users of the first round, which are those of every other, (B / count,)."""
        return self.users[: len(self.positions)]

    @property
    def item_table(self) -> torch.Tensor:
        """Embeddings of the items, (I, d)."""
        return self.table[self.n_users :]

    def scores(self, nodes: torch.Tensor) -> torch.Tensor:
        """x_ul of each pair's user with items (n, B), (n, B)."""
        return scores(self.table, self.users, nodes)

    def positive(self) -> torch.Tensor:
        """x_ui, (B,)."""
        return self.scores(self.items.unsqueeze(0))[0]


def counters(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers for ``count`` draws at each of the positions (b,), (count * b,), round after round."""
    if count == 1:
        return positions
    return (positions * count + torch.arange(count, device=positions.device).unsqueeze(1)).flatten()


def scores(table: torch.Tensor, users: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Inner products of users (B,) with nodes (n, B) of one table (N, d), (n, B), without gradient."""
    own = table.index_select(0, users)
    if table.device.type == "cpu" and table.dtype == torch.float32 and len(nodes) < len(table):
        return _fused(own, table, nodes)
    at_once = max(1, _AT_ONCE // max(1, own.numel()))
    blocks = [
        table.index_select(0, block.flatten()).view(*block.shape, -1).mul_(own).sum(-1)
        for block in torch.split(nodes, at_once)
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _fused(own: torch.Tensor, table: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """The same of rows (B, d), as entries of a product that is computed at these places alone: no row is copied.

    Twice as quick as to gather and multiply (measured, on a CPU). PyTorch refuses more places than columns in a row.
    """
    count, size = nodes.shape
    places = torch.sparse_csr_tensor(
        torch.arange(size + 1) * count,
        nodes.T.flatten(),
        own.new_zeros(size * count),
        (size, len(table)),
        check_invariants=False,
    )
    products: torch.Tensor = torch.sparse.sampled_addmm(places, own, table.T, beta=0.0).values()
    return products.view(size, count).T


class Sampler:
    """One negative for each pair of a user and a positive item.

    A sampler draws ``width`` items a pair ahead of the steps, for many steps at once. One that looks at the model
    then chooses in each step (``dynamic``); the others' single item is the negative. Where a positive has several
    negatives it draws for each of them, or ``once`` for all. A ``shared`` one draws nothing: its negatives are the
    items of the batch, for all of its users.
    """

    width = 1
    dynamic = False
    once = False
    shared = False

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        """Items (width, B) for users (B,): a pure function of key and counters, (B,)."""
        raise NotImplementedError

    def choose(self, view: View) -> torch.Tensor:
        """The negatives (B,) of a step, as nodes."""
        raise NotImplementedError

    def masked(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Which of the batch's items (n,) are no negatives of users (B,), boolean, (n, B)."""
        raise NotImplementedError

    def begin(self, table: torch.Tensor, epoch: int, key: int) -> None:
        """Called before each epoch with the model's final embeddings (U + I, d). Equal on all workers."""

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`begin` has gathered; empty for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state."""


class Uniform(Sampler):
    """RNS: uniform over the user's unobserved items. Thesis 4.5.1.2."""

    def __init__(self, unobserved: Unobserved) -> None:
        self._unobserved = unobserved

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        return uniform(self._unobserved, users, counters, key).unsqueeze(0)


class FromCandidates(Sampler):
    """A dynamic sampler that chooses among a few unobserved items, drawn uniformly: M_u of the thesis."""

    dynamic = True

    def __init__(self, unobserved: Unobserved, candidates: int) -> None:
        """With |M_u| = ``candidates``; a user who has fewer unobserved items has all of them as candidates."""
        self._unobserved = unobserved
        self.width = max(1, min(candidates, unobserved.most))

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        return subset(self._unobserved, users, counters, key, self.width)
