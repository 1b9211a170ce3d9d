"""What a trained model is to evaluation: the scores of all items for a block of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from workloads.recommender.dataset import History


class Scorer(Protocol):
    """Scores items for users."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of users and items."""
        ...

    def scores(self, first: int, last: int) -> torch.Tensor:
        """Scores of users ``first`` to ``last``, (last - first, I), float32."""
        ...


class Factors(NamedTuple):
    """Embeddings of users (U, d) and items (I, d), scored by their inner product."""

    users: torch.Tensor
    items: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Number of users and items."""
        return len(self.users), len(self.items)

    def scores(self, first: int, last: int) -> torch.Tensor:
        """Scores of users ``first`` to ``last``, (last - first, I)."""
        return self.users[first:last] @ self.items.T


@dataclass(frozen=True)
class FromHistory:
    """Scores from the items that a user has.

    ``of`` maps rows of zeros and ones (B, I), float32, to scores (B, I).
    """

    known: History
    n_items: int
    of: Callable[[torch.Tensor], torch.Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of users and items."""
        return len(self.known.counts), self.n_items

    def scores(self, first: int, last: int) -> torch.Tensor:
        """Scores of users ``first`` to ``last``, (last - first, I)."""
        return self.of(self.known.mask(first, last, self.n_items).float())
