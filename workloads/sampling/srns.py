"""SRNS: a memory of hard items for each user; the negative has a high score of high variance."""

from __future__ import annotations

import math
from typing import Any

import torch

from workloads.sampling.dynamic import largest, rows_at_once
from workloads.sampling.negatives import Unobserved, random_bits, subset
from workloads.sampling.sampler import FromCandidates, View, scores
from workloads.sorting import ascending

HISTORY = 5
"""Epochs over which the spread of a score is taken."""


class SRNS(FromCandidates):
    """Simplify and robustify negative sampling. Ding et al., NeurIPS 2020; thesis 4.5.1.2.

    The negative of (u, i) is the item k of a memory with the largest ``p_k + α_t std(p_k)``: p_k = σ(x_uk - x_ui), its
    standard deviation over the last five epochs, α_t rising to α over ``warmup`` epochs. The memory is the user's,
    drawn again for each pair, without replacement and with weights e^{x/τ}, from itself and ``pool`` unobserved items.

    In the paper's code the user's next interaction finds the memory that the one before it left. Here each draws from
    the memory of the epoch's start and a pool of its own, so that nothing depends on how a batch is shared out; what
    is kept changes by the epoch. Several negatives of a positive share its pool, each with a memory of its own, drawn
    from it and from what is kept. Past scores are computed from kept copies of the embeddings, for any item, where the
    code watches a random part of the items.
    """

    once = True

    def __init__(
        self, unobserved: Unobserved, *, memory: int, pool: int, alpha: float, warmup: int, temperature: float
    ) -> None:
        """``memory`` and ``pool``: items a user; ``alpha``: at least 0; ``warmup``: epochs; ``temperature``: τ, > 0."""
        super().__init__(unobserved, pool)
        self._size = memory
        self._alpha = alpha
        self._warmup = warmup
        self._temperature = temperature
        self._n_users = len(unobserved.counts)
        self._memory = unobserved.counts.new_zeros(memory, self._n_users)
        self._past: list[torch.Tensor] = []  # the latest last

    def choose(self, view: View) -> torch.Tensor:
        """Of each pair's renewed memory (S, B) the largest ``p_k + α_t std(p_k)``: nodes, (B,)."""
        items, values = self._union(view.table, view.owners, view.candidates - self._n_users)
        if view.count == 1:  # only the items of the memory need their past scores
            items = items.gather(0, self._noisy(values, view.counters, view.key).topk(self._size, dim=0).indices)
            return largest(self._worth(view, items), items) + self._n_users
        worth = self._worth(view, items)
        chosen = []
        for counters in view.counters.view(view.count, -1):
            noisy = self._noisy(values, counters, view.key)
            least = ascending(noisy.T)[:, -self._size]  # of the memory: quicker than which it has
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
        """Keeps the epoch's embeddings (U + I, d) among the last five and renews every user's memory, (S, U)."""
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
        """What memories are renewed from: the kept items and those drawn (n, b), and their scores / τ, (S + n, b)."""
        kept = self._memory.index_select(1, users)
        items = torch.cat([kept, drawn])
        values = scores(table, users, items + self._n_users) / self._temperature
        again = (drawn.unsqueeze(1) == kept).any(1)
        numbers = torch.arange(len(drawn), device=users.device).unsqueeze(1)
        again |= numbers >= self._unobserved.counts.index_select(0, users)  # the first, repeated
        values[len(kept) :].masked_fill_(again, -math.inf)
        return items, values

    def _noisy(self, values: torch.Tensor, counters: torch.Tensor, key: int) -> torch.Tensor:
        """Values (n, b) + Gumbel noise, whose S largest are a renewed memory."""
        numbers = torch.arange(len(values), device=values.device).unsqueeze(1)
        # Counters from the far end, where those of the drawn items are not.
        bits = random_bits(key, -1 - (counters * len(values) + numbers).flatten()).view(values.shape)
        return values - (-((bits.double() + 0.5) / 2**32).log()).log().to(values)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self._memory, "past": list(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._memory.copy_(state["memory"])
        self._past = [table.to(self._memory.device, copy=True) for table in state["past"]]


def _likelihood(x: torch.Tensor) -> torch.Tensor:
    """σ(x_uk - x_ui) from the positive's score and those of n items, (1 + n, B); (n, B)."""
    return torch.sigmoid(x[1:] - x[0])
