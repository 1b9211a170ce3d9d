"""In-batch negatives: every positive item of the batch is a negative of every user that does not have it."""

from __future__ import annotations

import torch

from workloads.sampling.lists import Lists
from workloads.sampling.negatives import Key
from workloads.sampling.sampler import Sampler


class InBatch(Sampler):
    """The positive items of the whole batch, all workers' and all micro-batches', for each of its users.

    An item that is there twice counts twice, so that items are drawn by their popularity. A user's own training items
    are masked, the positive itself among them (E-6.N).
    """

    width, shared = 0, True

    def __init__(self, observed: Lists) -> None:
        """From the users' training items."""
        self._observed = observed

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        """Nothing, (0, B): the negatives are the batch's items."""
        return users.new_empty(0, len(users))

    def masked(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Which of items (n,) are no negatives of users (B,), boolean, (n, B)."""
        return self._observed.having(users, items).T
