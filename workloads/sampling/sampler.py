"""Interface of negative samplers, and the view of the model for dynamic ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from workloads.sampling.negatives import Key, Unobserved, subset, uniform

_AT_ONCE = 2**28
"""Number of embedding entries gathered at once."""

with warnings.catch_warnings(action="ignore"):  # PyTorch warns once per process that CSR is "in beta state"
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), check_invariants=False)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One step for a dynamic sampler: B pairs of user and positive item, each of which needs a negative.

    If positives have several negatives, all pairs are repeated ``count`` times, one round after the other. Users and
    items are numbered together as nodes: item i is node ``n_users`` + i.

    ``users``, ``items``: (B,). ``candidates``: the items drawn in advance, (C, B), or (C, B / count) of a sampler that
    draws ``once``. ``positions``: positions (B / count,) of the positives in the pass, whose ``key`` it is. ``step``:
    number of the step in the pass. ``batch``: positive items (b,) of the whole batch, of all workers. ``epoch``: from
    1. ``table``: final embeddings of the nodes, (U + I, d), without gradient.
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
        """Counters of the pairs in the pass, (B,), int64. Draws in a step are pure functions of these and the key."""
        return counters(self.positions, self.count)

    @property
    def owners(self) -> torch.Tensor:
        """Users of one round, (B / count,)."""
        return self.users[: len(self.positions)]

    @property
    def item_table(self) -> torch.Tensor:
        """Embeddings of the items, (I, d)."""
        return self.table[self.n_users :]

    def scores(self, nodes: torch.Tensor) -> torch.Tensor:
        """Scores x_ul of each pair's user with items (n, B): (n, B)."""
        return scores(self.table, self.users, nodes)

    def positive(self) -> torch.Tensor:
        """Scores x_ui of the positives, (B,)."""
        return self.scores(self.items.unsqueeze(0))[0]


def counters(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Counters for ``count`` draws at each of the positions (b,): (count * b,), round after round."""
    if count == 1:
        return positions
    return (positions * count + torch.arange(count, device=positions.device).unsqueeze(1)).flatten()


def scores(table: torch.Tensor, users: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Inner products (n, B) of users (B,) with nodes (n, B) of one table (N, d), without gradient."""
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
    """The same for rows (B, d), as a sampled matrix product, without copying rows.

    Twice as fast as gather and multiply (measured on a CPU). PyTorch refuses more entries than columns in a row.
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
    """Sampler of one negative for each pair of user and positive item.

    Draws ``width`` items per pair in advance, for many steps at once. A ``dynamic`` sampler then chooses in each step
    by the model; for others the single item is the negative. If positives have several negatives, it draws for each of
    them, or ``once`` for all. A ``shared`` sampler draws nothing: its negatives are the items of the batch. ``log_q``
    (I,): logarithms of the items' sampling probabilities, by which the loss is to be corrected.
    """

    width = 1
    dynamic = False
    once = False
    shared = False
    log_q: torch.Tensor | None = None

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        """Draw items (width, B) for users (B,), a pure function of key and counters (B,)."""
        raise NotImplementedError

    def choose(self, view: View) -> torch.Tensor:
        """Choose the negatives (B,) of a step, as nodes."""
        raise NotImplementedError

    def masked(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Mask (n, B) of the batch's items (n,) that are not negatives of users (B,)."""
        raise NotImplementedError

    def begin(self, table: torch.Tensor, epoch: int, key: int) -> None:
        """Called before each epoch with the model's final embeddings (U + I, d). Equal on all workers."""

    def state_dict(self) -> dict[str, Any]:
        """State collected by :meth:`begin`; empty for most samplers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state."""


class Uniform(Sampler):
    """RNS: uniform over the user's unobserved items. Thesis 4.5.1.2."""

    def __init__(self, unobserved: Unobserved) -> None:
        self._unobserved = unobserved

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        return uniform(self._unobserved, users, counters, key).unsqueeze(0)


class FromCandidates(Sampler):
    """Dynamic sampler that chooses among a few uniformly drawn unobserved items: M_u of the thesis."""

    dynamic = True

    def __init__(self, unobserved: Unobserved, candidates: int) -> None:
        """``candidates``: |M_u|. Users with fewer unobserved items have all of them as candidates."""
        self._unobserved = unobserved
        self.width = max(1, min(candidates, unobserved.most))

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        return subset(self._unobserved, users, counters, key, self.width)
