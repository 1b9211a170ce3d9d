"""SRNS: a memory of hard items for each user; the negative has a high score with high variance."""

from __future__ import annotations

import math
from typing import Any

import torch

from workloads.sampling.dynamic import largest, rows_at_once
from workloads.sampling.negatives import Unobserved, random_bits, subset
from workloads.sampling.sampler import FromCandidates, View, scores
from workloads.sorting import ascending

HISTORY = 5
"""Number of epochs for the standard deviation of a score."""


class SRNS(FromCandidates):
    """Simplify and robustify negative sampling. Ding et al., NeurIPS 2020; thesis 4.5.1.2.

    The negative of (u, i) is the item k of a memory with the largest ``p_k + α_t std(p_k)``: p_k = σ(x_uk - x_ui), its
    standard deviation over the last five epochs, α_t rising to α over ``warmup`` epochs. The user's memory
    is redrawn for each pair, without replacement and with weights e^{x/τ}, from itself and ``pool`` unobserved items.

    In the paper's code, each interaction of a user updates the memory for the next one. Here each pair draws from the
    memory at the start of the epoch and its own pool, so that the result does not depend on the sharding of batches;
    the stored memory changes once per epoch. Several negatives of a positive share its pool and have separate memories.
    Past scores are computed for any item, from stored copies of the embeddings; the paper's code tracks a random part
    of the items.
    """

    once = True

    def __init__(
        self, unobserved: Unobserved, *, memory: int, pool: int, alpha: float, warmup: int, temperature: float
    ) -> None:
        """``memory``, ``pool``: items per user; ``alpha``: at least 0; ``warmup``: epochs; ``temperature``: τ > 0."""
        super().__init__(unobserved, pool)
        self._size = memory
        self._alpha = alpha
        self._warmup = warmup
        self._temperature = temperature
        self._n_users = len(unobserved.counts)
        self._memory = unobserved.counts.new_zeros(memory, self._n_users)
        self._past: list[torch.Tensor] = []  # newest last

    def choose(self, view: View) -> torch.Tensor:
        """The item of each pair's redrawn memory (S, B) with the largest ``p_k + α_t std(p_k)``: nodes (B,)."""
        items, values = self._union(view.table, view.owners, view.candidates - self._n_users)
        if view.count == 1:  # past scores are needed only for items of the memory
            items = items.gather(0, self._noisy(values, view.counters, view.key).topk(self._size, dim=0).indices)
            return largest(self._worth(view, items), items) + self._n_users
        worth = self._worth(view, items)
        chosen = []
        for counters in view.counters.view(view.count, -1):
            noisy = self._noisy(values, counters, view.key)
            least = ascending(noisy.T)[:, -self._size]  # of the memory: faster than its members
            chosen.append(largest(worth.masked_fill(noisy < least, -math.inf), items))
        return torch.cat(chosen) + self._n_users

    def _worth(self, view: View, items: torch.Tensor) -> torch.Tensor:
        """``p_k + α_t std(p_k)`` of items (n, b) with the step's pairs, (n, b)."""
        pairs = items.shape[1]
        nodes = torch.cat([view.items[:pairs].unsqueeze(0), items + self._n_users])
        past = [_likelihood(scores(table, view.owners, nodes)) for table in self._past]
        alpha = self._alpha * min(1.0, (view.epoch - 1) / self._warmup)
        return _likelihood(scores(view.table, view.owners, nodes)) + alpha * torch.stack(past).std(0, correction=0)

    def begin(self, table: torch.Tensor, epoch: int, key: int) -> None:
        """Store the epoch's embeddings (U + I, d) with the last five, and redraw every user's memory, (S, U)."""
        users = torch.arange(self._n_users, device=table.device)
        first = not self._past
        self._past = [*self._past, table.clone()][-HISTORY:]
        for part in torch.split(users, rows_at_once(table.device, (self._size + self.width) * table.shape[1])):
            drawn = subset(self._unobserved, part, part, key, self._size if first else self.width)
            if not first:
                items, values = self._union(table, part, drawn)
                drawn = items.gather(0, self._noisy(values, part, key).topk(self._size, dim=0).indices)
            self._memory[:, part] = drawn

    def _union(
        self, table: torch.Tensor, users: torch.Tensor, drawn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Items for new memories, the stored and the drawn ones (n, b), and their scores / τ, (S + n, b)."""
        kept = self._memory.index_select(1, users)
        items = torch.cat([kept, drawn])
        values = scores(table, users, items + self._n_users) / self._temperature
        again = (drawn.unsqueeze(1) == kept).any(1)
        numbers = torch.arange(len(drawn), device=users.device).unsqueeze(1)
        again |= numbers >= self._unobserved.counts.index_select(0, users)  # the first, repeated
        values[len(kept) :].masked_fill_(again, -math.inf)
        return items, values

    def _noisy(self, values: torch.Tensor, counters: torch.Tensor, key: int) -> torch.Tensor:
        """Values (n, b) + Gumbel noise. The S largest are the new memory."""
        numbers = torch.arange(len(values), device=values.device).unsqueeze(1)
        # Counters from the other end, which drawn items do not use.
        bits = random_bits(key, -1 - (counters * len(values) + numbers).flatten()).view(values.shape)
        return values - (-((bits.double() + 0.5) / 2**32).log()).log().to(values)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self._memory, "past": list(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._memory.copy_(state["memory"])
        self._past = [table.to(self._memory.device, copy=True) for table in state["past"]]


def _likelihood(x: torch.Tensor) -> torch.Tensor:
    """σ(x_uk - x_ui) (n, B), from the scores of the positive and of n items, (1 + n, B)."""
    return torch.sigmoid(x[1:] - x[0])
