"""Bayesian negative sampling (BNS): choose the candidate with the lowest risk, from its score's eCDF and a prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

from workloads.sampling.dynamic import largest, rows_at_once
from workloads.sampling.lists import Lists
from workloads.sampling.negatives import Unobserved, random_bits
from workloads.sampling.sampler import FromCandidates, View
from workloads.sorting import ascending

Population: TypeAlias = Literal["exact", "sampled", "batch"]
"""Items whose scores make a user's distribution: all items, random items of each step, or the batch's items; always
without the user's own items (E-4.15)."""

Prior: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Prior P_fn (C, B), in [0, 1], of users (B,) with items (C, B)."""

_COMPARED = 16
"""Number of candidates up to which each is compared with every score; with more, sorting is faster."""


def unbias(cdf: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """P(true negative | score). Thesis (4.14); for 0/0 the limit in F, 1 - P (E-4.14).

    Args:
        cdf: F(x), in [0, 1].
        prior: P_fn, in [0, 1], of the same shape.

    Returns:
        The same shape, in [0, 1].
    """
    negative = (1 - cdf) * (1 - prior)
    total = negative + cdf * prior
    return torch.where(total > 0, negative / total, 1 - prior)


def risk(info: torch.Tensor, negative: torch.Tensor, lam: float) -> torch.Tensor:
    """R(l|i) = info (1 - (1 + λ) unbias). Thesis (4.26) and (4.30).

    Args:
        info: (4.4), in [0, 1].
        negative: :func:`unbias`, of the same shape.
        lam: λ, at least 0.

    Returns:
        The same shape, in [-λ, 1].
    """
    return info * (1 - (1 + lam) * negative)


def warm_lambda(epoch: int) -> float:
    """λ of BNS-1, max(10 - 0.1 t, 2), with t from 0 for an ``epoch`` from 1 (thesis 4.5.2.3, E-4.B1)."""
    return max(10 - 0.1 * (epoch - 1), 2.0)


class ScoreECDF:
    """F(x_ul), the share of the user's unobserved items with scores up to x_ul. Thesis (4.15).

    Computed as count / (n + 1), which never reaches 1 (E-4.14).
    """

    def __init__(self, observed: Lists, n_items: int, population: Population, size: int = 128) -> None:
        """``size``: number of items that a step draws for ``sampled``, one from each of ``size`` equal parts."""
        self._observed, self._n_items = observed, n_items
        self._population = population
        self._size = min(size, n_items)

    def __call__(self, view: View, x: torch.Tensor) -> torch.Tensor:
        """F of the candidates' scores x (C, B), without gradient, computed in blocks of pairs.

        The scores of a pair are computed and sorted once for all its negatives.
        """
        if not len(view.owners):  # an empty part of a batch
            return torch.empty_like(x)
        members, columns, repeated = self._members(view)
        table = view.item_table if members is None else view.item_table.index_select(0, members)
        shape = x.shape
        pairs = len(view.owners)
        size = len(table)
        x = x.reshape(-1, pairs)
        items_of = (view.candidates - view.n_users).reshape(-1, pairs)
        result = torch.empty_like(x)
        rows = rows_at_once(x.device, size)
        for first in range(0, pairs, rows):
            part = slice(first, first + rows)
            users = view.owners[part]
            own = items_of[:, part]
            scores = view.table.index_select(0, users) @ table.T
            if columns is not None:
                own = columns[own]
            # A candidate in the population has its score there, since scores computed otherwise may round differently.
            same = scores.gather(1, own.clamp_max(size - 1).T).T
            left = self._leave_out(scores, users, columns, repeated)
            result[:, part] = _at_most(scores, torch.where(own < size, same, x[:, part])) / (left + 1)
        return result.view(shape)

    def _leave_out(
        self,
        scores: torch.Tensor,
        users: torch.Tensor,
        columns: torch.Tensor | None,
        repeated: torch.Tensor | None,
    ) -> torch.Tensor:
        """Set scores (B, n) of the users' own items and of repeated ones to infinity. Returns the number of others."""
        if scores.device.type == "cpu":
            places, items = self._observed.expand(users)
            if columns is not None:
                items = columns.index_select(0, items)
                places = places[items < scores.shape[1]]
                items = items[items < scores.shape[1]]
            scores[places, items] = math.inf
            return scores.shape[1] - torch.bincount(places, minlength=len(users))
        out = self._observed.mask(users, scores.shape[1], columns)
        out = out if repeated is None else out | repeated
        scores.masked_fill_(out, math.inf)
        return scores.shape[1] - out.sum(1)

    def _members(self, view: View) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Items of the population (n,), each item's position among them or n, and the mask of repeated ones (n,).

        The first two are None for all items, the last is None if none is repeated.
        """
        if self._population == "exact" or (self._population == "sampled" and self._size == self._n_items):
            return None, None, None
        repeated = None
        if self._population == "batch" and view.batch.device.type == "cpu":
            members = view.batch.unique() - view.n_users  # type: ignore[no-untyped-call]
        elif self._population == "batch":  # on CUDA, unique synchronises
            members = view.batch.flatten().sort().values - view.n_users
            repeated = members == torch.cat([members.new_full((1,), -1), members[:-1]])
        else:
            numbers = torch.arange(self._size + 1, device=view.users.device)
            bounds = numbers * self._n_items // self._size
            bits = random_bits(view.key, view.step * self._size + numbers[:-1])
            members = bounds[:-1] + ((bits * bounds.diff()) >> 32)
        numbers = torch.arange(len(members), device=members.device)
        columns = members.new_full((self._n_items,), len(members)).scatter_reduce_(0, members, numbers, "amin")
        return members, columns, repeated


def _at_most(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Number (C, B) of ``scores`` (B, n) in each row that are at most ``x`` (C, B)."""
    if len(x) > _COMPARED:
        return torch.searchsorted(ascending(scores), x.T.contiguous(), right=True).T.to(x)
    # A matrix product with ones is much faster than a sum of booleans.
    ones = scores.new_ones(scores.shape[1])
    flags = torch.empty_like(scores)
    return torch.stack([torch.le(scores, row.unsqueeze(1), out=flags) @ ones for row in x])


class BNS(FromCandidates):
    """The candidate with the lowest risk; the first of equal ones. Thesis algorithm 2 and (4.30).

    With ``posterior_only``, the one with the largest unbias, (4.29). The variants are arguments: BNS-1 is a decreasing
    λ, BNS-2 uniform epochs at the start, BNS-3 and BNS-4 other priors.
    """

    def __init__(
        self,
        unobserved: Unobserved,
        candidates: int,
        ecdf: ScoreECDF,
        prior: Prior,
        lam: Callable[[int], float],
        *,
        posterior_only: bool = False,
        uniform_epochs: int = 0,
    ) -> None:
        """``lam``: λ of an epoch, from 1. ``uniform_epochs``: number of first epochs that draw uniformly, as RNS."""
        super().__init__(unobserved, candidates)
        self._ecdf = ecdf
        self._prior = prior
        self._lam = lam
        self._posterior_only, self._uniform_epochs = posterior_only, uniform_epochs

    def choose(self, view: View) -> torch.Tensor:
        """The candidate of each pair (C, B) with the lowest risk, or the largest unbias: nodes (B,)."""
        if view.epoch <= self._uniform_epochs:
            return self._any(view)
        x = view.scores(view.candidates)
        negative = unbias(self._ecdf(view, x), self._prior(view.users, view.candidates - view.n_users))
        if self._posterior_only:
            return largest(negative, view.candidates)
        info = torch.sigmoid(x - view.positive())  # (4.4)
        return largest(-risk(info, negative, self._lam(view.epoch)), view.candidates)

    def _any(self, view: View) -> torch.Tensor:
        """A uniformly drawn candidate of each pair: nodes (B,).

        The first candidate would be wrong, since the set is uniform but its order is not.
        """
        distinct = self._unobserved.counts.index_select(0, view.users).clamp_max(self.width)
        # Counters from the other end, which candidates do not use.
        row = (random_bits(view.key, -1 - view.counters) * distinct) >> 32
        return view.candidates.gather(0, row.unsqueeze(0)).squeeze(0)


def item_prior(probabilities: torch.Tensor) -> Prior:
    """Prior that is equal for all users, from (I,): (4.16), or a constant for BNS-3."""
    return lambda _users, items: probabilities.index_select(0, items.flatten()).view(items.shape)


def group_prior(probabilities: torch.Tensor, groups: torch.Tensor) -> Prior:
    """Prior by group, from (G, I) and each user's group (U,): BNS-4."""

    def prior(users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """P_fn of users (B,) with items (C, B): (C, B)."""
        return probabilities[groups.index_select(0, users), items]

    return prior


def occupation_prior(popularity: torch.Tensor, by_group: torch.Tensor) -> torch.Tensor:
    """P_fn of BNS-4 for each group: pop / N (1 + Δ), Δ = (o_g - mean o) / max o over groups; clipped to [0, 1].

    Thesis 4.5.2.3 with E-4.B4.

    Args:
        popularity: training interactions of each item, (I,).
        by_group: training interactions of each group of users, such as an occupation, (G, I).

    Returns:
        (G, I), float32.
    """
    counts = by_group.double()
    change = (counts - counts.mean(0)) / counts.amax(0).clamp_min(1)
    shares = popularity.double() / popularity.sum().clamp_min(1)
    return (shares * (1 + change)).clamp(0, 1).float()


def social_prior(popularity: torch.Tensor, by_friends: torch.Tensor, linked: torch.Tensor) -> torch.Tensor:
    """P_fn of each user (U, I): BNS-4's with a user's friends in the place of an occupation (E-4.B5).

    Args:
        popularity: training interactions of each item, (I,).
        by_friends: number of each user's friends who have an item, (U, I).
        linked: users with friends, boolean (U,); for others Δ is 0.
    """
    prior = occupation_prior(popularity, torch.zeros_like(popularity).unsqueeze(0)).repeat(len(linked), 1)
    if linked.any():
        prior[linked] = occupation_prior(popularity, by_friends[linked])
    return prior


def oracle_prior(
    false_negative: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], otherwise: Prior | None = None
) -> Prior:
    """Prior (label - 0.2)^2: .64 for false negatives, .04 for other items. Thesis 4.5.2.5, table 4.5.

    Args:
        false_negative: returns whether users like items, boolean, for two tensors of one shape.
        otherwise: P_fn of other items, instead of .04.
    """

    def prior(users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """P_fn of users (B,) with items (C, B): (C, B)."""
        liked = false_negative(users.expand_as(items), items)
        return torch.where(liked, 0.64, 0.04 if otherwise is None else otherwise(users, items))

    return prior
