"""In-batch negatives: every positive item of the batch is a negative of every user that does not have it."""

from __future__ import annotations

import torch

from workloads.sampling.lists import Lists
from workloads.sampling.negatives import Key
from workloads.sampling.sampler import Sampler


class InBatch(Sampler):
    """The positive items of the whole batch, of all workers and micro-batches, for each of its users.

    Repeated items count repeatedly, so items are drawn by popularity. A user's own training items, including the
    positive, are masked (E-6.N).
    """

    width, shared = 0, True

    def __init__(self, observed: Lists, log_q: torch.Tensor | None = None) -> None:
        """``observed``: training items of the users. ``log_q``: see :class:`~workloads.sampling.sampler.Sampler`."""
        self._observed = observed
        self.log_q = log_q

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        """Nothing, (0, B): the negatives are the batch's items."""
        return users.new_empty(0, len(users))

    def masked(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Mask (n, B) of items (n,) that are not negatives of users (B,)."""
        return self._observed.having(users, items).T
