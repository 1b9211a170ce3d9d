"""SRNS: a memory of hard items for each user, of which the one whose score varies most is the negative."""

from __future__ import annotations

import math
from typing import Any

import torch

from workloads.sampling.dynamic import largest, rows_at_once
from workloads.sampling.negatives import Unobserved, random_bits, subset
from workloads.sampling.sampler import FromCandidates, View, scores

HISTORY = 5
"""Epochs over which the spread of a score is taken."""


class SRNS(FromCandidates):
    """Simplify and robustify negative sampling. Ding et al., NeurIPS 2020; thesis 4.5.1.2.

    The negative of (u, i) is the item k of a memory with the largest ``p_k + α_t std(p_k)``: p_k = σ(x_uk - x_ui), its
    standard deviation over the last five epochs, α_t rising to α over ``warmup`` epochs. The memory is the user's,
    drawn anew, without replacement and with weights e^{x/τ}, from itself and ``pool`` unobserved items.

    In the paper's code the user's next interaction finds the memory that the one before it left. Here each draws from
    the memory of the epoch's start and a pool of its own, so that nothing depends on how a batch is shared out; what
    is kept changes by the epoch. Past scores are computed from kept copies of the embeddings, for any item, where the
    code watches a random part of the items.
    """

    def __init__(
        self, unobserved: Unobserved, *, memory: int, pool: int, alpha: float, warmup: int, temperature: float
    ) -> None:
        """``memory`` and ``pool``: items a user; ``alpha``: at least 0; ``warmup``: epochs; ``temperature``: τ, above 0."""
        super().__init__(unobserved, pool)
        self._size = memory
        self._alpha, self._warmup, self._temperature = alpha, warmup, temperature
        self._n_users = len(unobserved.counts)
        self._memory = unobserved.counts.new_zeros(memory, self._n_users)
        self._past: list[torch.Tensor] = []  # the latest last

    def choose(self, view: View) -> torch.Tensor:
        """Of each pair's renewed memory (S, B) the largest ``p_k + α_t std(p_k)``: nodes, (B,)."""
        drawn = view.candidates - self._n_users
        items = self._renewed(view.table, view.users, drawn, view.counters, view.key) + self._n_users
        nodes = torch.cat([view.items.unsqueeze(0), items])
        past = [_likelihood(scores(table, view.users, nodes)) for table in self._past]
        alpha = self._alpha * min(1.0, (view.epoch - 1) / self._warmup)
        value = _likelihood(scores(view.table, view.users, nodes)) + alpha * torch.stack(past).std(0, correction=0)
        return largest(value, items)

    def begin(self, table: torch.Tensor, epoch: int, key: int) -> None:
        """Keeps the epoch's embeddings (U + I, d) among the last five and renews every user's memory, (S, U)."""
        users = torch.arange(self._n_users, device=table.device)
        first = not self._past
        self._past = [*self._past, table.clone()][-HISTORY:]
        for part in torch.split(users, rows_at_once(table.device, (self._size + self.width) * table.shape[1])):
            drawn = subset(self._unobserved, part, part, key, self._size if first else self.width)
            self._memory[:, part] = drawn if first else self._renewed(table, part, drawn, part, key)

    def _renewed(
        self, table: torch.Tensor, users: torch.Tensor, drawn: torch.Tensor, counters: torch.Tensor, key: int
    ) -> torch.Tensor:
        """Memories (S, B) of users (B,): the best of the kept and items drawn (n, B) by score / τ + Gumbel noise."""
        kept = self._memory.index_select(1, users)
        items = torch.cat([kept, drawn])
        values = scores(table, users, items + self._n_users) / self._temperature
        numbers = torch.arange(len(items), device=users.device).unsqueeze(1)
        # Counters from the far end, where those of the drawn items are not.
        bits = random_bits(key, -1 - (counters * len(items) + numbers).flatten()).view(items.shape)
        values -= (-((bits.double() + 0.5) / 2**32).log()).log().to(values)
        again = (drawn.unsqueeze(1) == kept).any(1)
        again |= numbers[: len(drawn)] >= self._unobserved.counts.index_select(0, users)  # the first, repeated
        values[len(kept) :].masked_fill_(again, -math.inf)
        return items.gather(0, values.topk(self._size, dim=0).indices)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self._memory, "past": list(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._memory.copy_(state["memory"])
        self._past = [table.to(self._memory.device, copy=True) for table in state["past"]]


def _likelihood(x: torch.Tensor) -> torch.Tensor:
    """σ(x_uk - x_ui) from the positive's score and those of n items, (1 + n, B); (n, B)."""
    return torch.sigmoid(x[1:] - x[0])
