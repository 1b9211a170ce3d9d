"""Scorers: the scores of all items for a block of users, the interface between trained models and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

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

    def only(self, numbers: NDArray[np.int64] | None) -> Factors:
        """Of the users with these numbers (S,), the table with S rows; None: of all."""
        return self if numbers is None else Factors(self.users[torch.from_numpy(numbers)], self.items)

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
