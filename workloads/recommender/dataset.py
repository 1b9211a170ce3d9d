"""A dataset prepared for training and evaluation, on the device, shared by the trials of a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data import Interactions
from workloads.data.interactions.splits import hold_out, user_csr
from workloads.data.interactions.truth import false_positives
from workloads.memory import BoundedCache
from workloads.recommender.model import Graph, normalised_graph
from workloads.sampling.lists import Lists
from workloads.sampling.negatives import Unobserved
from workloads.sampling.pairs import PairSet
from workloads.seeding import random_order

VALIDATION_FRACTION = 0.1
"""Share of each user's training interactions that is held out for validation, rounded, and at least one of two or more:
of sparse data more than a tenth is held out."""


class History:
    """Item lists of U users: ``items[indptr[u]:indptr[u + 1]]`` of the user in row u, ascending.

    ``indptr`` (U + 1,) stays on the host, so that slicing needs no synchronisation; ``users``, the rows, and ``items``
    (n,) int64 are on the device. ``numbers`` (U,) are the users' numbers in the dataset, which has ``n_users``; None if
    those are the rows.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        users: torch.Tensor,
        items: torch.Tensor,
        numbers: NDArray[np.int64] | None = None,
        n_users: int | None = None,
    ) -> None:
        self.indptr = indptr
        self.counts = np.diff(indptr)
        self.users = users
        self.items = items
        self.numbers = numbers
        self.n_users = len(self.counts) if n_users is None else n_users

    @classmethod
    def of(cls, pairs: NDArray[np.integer[Any]], n_users: int, device: torch.device) -> History:
        """From pairs (n, 2) of a user and an item, in any order."""
        indptr, items = user_csr(pairs, n_users)
        users = torch.from_numpy(np.repeat(np.arange(n_users), np.diff(indptr)))
        return cls(indptr, users.to(device), torch.from_numpy(items).to(device, torch.int64))

    def only(self, numbers: NDArray[np.int64]) -> History:
        """The lists of the users with these numbers, (S,)."""
        counts = self.counts[numbers]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        rows = np.repeat(np.arange(len(numbers)), counts)
        places = torch.from_numpy(np.arange(indptr[-1]) + (self.indptr[numbers] - indptr[:-1])[rows])
        device = self.items.device
        return History(indptr, torch.from_numpy(rows).to(device), self.items[places.to(device)], numbers, self.n_users)

    def mask(self, first: int, last: int, n_items: int) -> torch.Tensor:
        """The items of rows ``first`` to ``last`` as a boolean block, (last - first, n_items)."""
        part = slice(int(self.indptr[first]), int(self.indptr[last]))
        mask = torch.zeros(last - first, n_items, dtype=torch.bool, device=self.items.device)
        mask[self.users[part] - first, self.items[part]] = True
        return mask


def sampled_users(history: History, size: int, seed: int) -> NDArray[np.int64]:
    """The numbers of ``size`` random users with an item, ascending; of all of them if there are no more."""
    users = np.flatnonzero(history.counts)
    return np.sort(users[random_order(len(users), seed)[:size]])


@dataclass(frozen=True)
class RecommenderData:
    """One dataset, split and device.

    ``train``: training interactions. ``seen``: train and validation. ``pairs`` (2, n): user and item nodes of the
    interactions whose user has an unobserved item. ``truth`` (U, I), on the host: what users truly like, for generated
    data. ``wrong`` (n,): which of ``pairs`` are false, by that truth or as injected noise; None if unknown.
    ``user_ids`` and ``item_ids``: ids of the source, if any.
    """

    n_users: int
    n_items: int
    train: History
    validation: History
    seen: History
    test: History
    unobserved: Unobserved
    pairs: torch.Tensor
    truth: NDArray[np.bool_] | None = None
    wrong: torch.Tensor | None = None
    user_ids: NDArray[Any] | None = None
    item_ids: NDArray[Any] | None = None

    @cached_property
    def graph(self) -> Graph:
        """The graph of the training interactions."""
        return normalised_graph(self.train.users, self.train.items + self.n_users, self.n_users + self.n_items)

    @cached_property
    def observed(self) -> Lists:
        """The items of each user, in training."""
        indptr = torch.from_numpy(self.train.indptr).to(self.pairs.device)
        return Lists(indptr, self.train.items, self.n_items)

    @cached_property
    def chosen_by(self) -> Lists:
        """The users of each item, in training."""
        order = self.train.items.argsort(stable=True)
        indptr = torch.nn.functional.pad(self.popularity.cumsum(0), (1, 0))
        return Lists(indptr, self.train.users[order], self.n_users)

    @cached_property
    def list_positions(self) -> torch.Tensor:
        """For each pair, the item's position in ``observed`` and the user's in ``chosen_by``, (2, n)."""
        users = self.pairs[0]
        items = self.pairs[1] - self.n_users
        return torch.stack([self.observed.positions(users, items), self.chosen_by.positions(items, users)])

    @cached_property
    def popularity(self) -> torch.Tensor:
        """Training interactions of each item, (I,)."""
        return torch.bincount(self.train.items, minlength=self.n_items)

    @cached_property
    def unknown(self) -> Unobserved:
        """The items of neither training nor validation, for each user."""
        if not len(self.validation.items):
            return self.unobserved
        indptr = torch.from_numpy(self.seen.indptr).to(self.pairs.device)
        return Unobserved(indptr, self.seen.items, self.n_items)

    @property
    def density(self) -> float:
        """Share of all pairs of a user and an item that are training interactions (thesis tables 4.1 and 5.1)."""
        return len(self.train.items) / (self.n_users * self.n_items)

    @cached_property
    def planted(self) -> PairSet | None:
        """The true preferences of users, for generated data; None otherwise."""
        if self.truth is None:
            return None
        users, items = (torch.from_numpy(side).to(self.pairs.device) for side in np.nonzero(self.truth))
        return PairSet(users, items, self.n_users, self.n_items)

    def liked(self, truth: str) -> PairSet:
        """Items that users like besides their training items, by ``validation``, ``test`` or the ``planted`` truth.

        Raises:
            ValueError: ``planted`` for data that is not generated.
        """
        if truth == "planted":
            if self.planted is None:
                raise ValueError("the truth of this dataset is not known: truth=planted is for generated data")
            return self.planted
        history = self.test if truth == "test" else self.validation
        return PairSet(history.users, history.items, self.n_users, self.n_items)


@BoundedCache
def prepare(data: Interactions, split_seed: int, holdout: bool, device: torch.device) -> RecommenderData:
    """As :func:`divide`; results are cached in the process."""
    return divide(data, split_seed, holdout, device)


def divide(
    data: Interactions, split_seed: int, holdout: bool, device: torch.device, listed: bool | None = None
) -> RecommenderData:
    """Split and convert a dataset. Without ``holdout`` all interactions are in train, and validation is empty.

    ``listed``: form of ``unobserved``; None decides by size.
    """
    if not holdout:
        held: NDArray[np.bool_] = np.zeros(len(data.train), np.bool_)
    elif data.held_out is None:
        held = hold_out(data.train, data.n_users, VALIDATION_FRACTION, split_seed)
    else:
        held = data.held_out
    # A cut in time may hold out all that a user has: then there is no user to validate on.
    evaluated = held & np.isin(data.train[:, 0], data.train[~held, 0])
    train, validation, seen, test = (
        History.of(pairs, data.n_users, device)
        for pairs in (data.train[~held], data.train[evaluated], data.train, data.test)
    )
    indptr = torch.from_numpy(train.indptr).to(device)
    unobserved = Unobserved(indptr, train.items, data.n_items, listed)
    pairs = torch.stack([train.users, train.items + data.n_users])
    pairs = pairs[:, unobserved.counts[train.users] > 0]
    wrong = None
    if data.truth is not None or data.noise is not None:
        users, items = torch.from_numpy(data.train[false_positives(data)]).to(device, torch.int64).unbind(1)
        wrong = PairSet(users, items, data.n_users, data.n_items).contains(pairs[0], pairs[1] - data.n_users)
    return RecommenderData(
        data.n_users,
        data.n_items,
        train,
        validation,
        seen,
        test,
        unobserved,
        pairs,
        data.truth,
        wrong,
        data.user_ids,
        data.item_ids,
    )
