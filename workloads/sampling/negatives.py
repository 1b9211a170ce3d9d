"""Negative items for (user, positive item) pairs, drawn on the device and without rejection.

A draw is a pure function of (key, counter). The counter is the pair's position in the global order of the epoch, so any
number of workers draws the same negatives, and a resumed run draws those of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

from workloads.sampling.pairs import LISTED, PairSet

Key: TypeAlias = int | torch.Tensor
"""63 bits, from :func:`workloads.seeding.derive`; a tensor (B,) has one key for each counter."""


def random_bits(key: Key, counters: torch.Tensor) -> torch.Tensor:
    """32 random bits for each counter, as int64 in [0, 2^32); the same on every device.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of ``key + counter * golden gamma``; the upper half is kept.

    Args:
        key: one for all counters, or one for each.
        counters: (B,), int64.
    """
    z = (counters * _signed(0x9E3779B97F4A7C15)).add_(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        # int64 shifts keep the sign; with the mask this is the unsigned shift of the paper.
        z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    z.bitwise_xor_((z >> 31).bitwise_and_((1 << 33) - 1))
    return z.bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF)


def permutation(key: int, n: int, device: torch.device) -> torch.Tensor:
    """A random permutation of n numbers, (n,) int64, the same on every device.

    ``torch.randperm`` on CUDA depends on the number of multiprocessors if n is above about 900,000.
    """
    upper, lower = random_bits(key, torch.arange(2 * n, device=device)).view(2, n)
    order: torch.Tensor = ((upper << 31) | (lower >> 1)).sort(stable=True).indices
    return order


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


class Unobserved:
    """The items each user has not interacted with, I_u^- of the thesis, in ascending order.

    Two forms with equal results: listed if users x items are few (one gather per item), else by binary search among the
    positives (memory proportional to the interactions).
    """

    def __init__(
        self,
        indptr: torch.Tensor,
        items: torch.Tensor,
        n_items: int,
        listed: bool | None = None,
        made: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Build from each user's positives: ``items[indptr[u]:indptr[u + 1]]``, ascending and distinct.

        Args:
            indptr: (U + 1,), int64.
            items: (n,), int64.
            n_items: the size I of the catalogue.
            listed: which form to use; None decides by size.
            made: :meth:`tensors` of the same positives, which then are not computed again.
        """
        n_users = len(indptr) - 1
        observed = indptr.diff()
        self.counts = n_items - observed
        """|I_u^-|, (U,), int64."""
        left = self.counts[self.counts > 0]
        self.fewest, self.most = (int(value) for value in left.aminmax()) if len(left) else (0, 0)
        """Smallest and largest number of unobserved items of the users who have any."""
        self.n_items = n_items
        self.listed = n_users * n_items <= LISTED if listed is None else listed
        if made is None:
            users = torch.repeat_interleave(torch.arange(n_users, device=items.device), observed)
            self.observed = PairSet(users, items, n_users, n_items)
            self._items = self._listed_items(users, items) if self.listed else self._search_keys(indptr, users, items)
        else:
            self.observed = PairSet(items, items, n_users, n_items, made)
            self._items = made["items"]
        self._start = self.counts.cumsum(0) - self.counts if self.listed else indptr
        self._span = n_items + 1

    def _listed_items(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """All unobserved items of all users, one user after the other, int32."""
        shape = len(self.counts), self.n_items
        mask = torch.ones(shape, dtype=torch.bool, device=items.device)
        mask[users, items] = False
        return torch.arange(self.n_items, dtype=torch.int32, device=items.device).expand(shape).masked_select(mask)

    def _search_keys(self, indptr: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """For each positive, its user and the number of unobserved items below it in one integer, ascending."""
        # An item minus its position among the positives is the number of unobserved items below it.
        below = items - (torch.arange(len(items), device=items.device) - indptr[users])
        return users * (self.n_items + 1) + below

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that was computed and takes time, by name."""
        return {**self.observed.tensors(), "items": self._items}

    def pick(self, users: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
        """Unobserved items of ``users`` (B,) at ``ranks`` (B,) or (C, B), int64, from 0. Has the shape of ``ranks``.

        For a rank at or above ``counts[user]`` the result is an arbitrary item.
        """
        start = self._start.index_select(0, users)
        if self.listed:
            at = (start + ranks).clamp_(max=len(self._items) - 1)
            return self._items.index_select(0, at.flatten()).long().view(ranks.shape)
        # Searches of one user in sequence: on a CPU they share the cache.
        keys = (users * self._span + ranks).view(ranks.shape[:-1].numel(), len(users)).T.contiguous()
        smaller = torch.searchsorted(self._items, keys, right=True).T.reshape(ranks.shape) - start
        return (ranks + smaller).clamp_(max=self.n_items - 1)


def uniform(unobserved: Unobserved, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
    """Draw one item per pair, uniform over the user's unobserved items (RNS, thesis 4.5.1.2).

    Args:
        unobserved: I_u^- of every user; ``users`` must have at least one item each.
        users: (B,), int64.
        counters: (B,), int64, unique among the draws of an epoch.
        key: the epoch's key, or one for each pair.

    Returns:
        Items, (B,), int64. The bias of mapping 32 bits to n items is at most n / 2^32.
    """
    if unobserved.listed:
        return unobserved.pick(users, _rank(unobserved, users, counters, key))
    # A search costs more than a draw. An item of the catalogue, replaced if observed, has the same distribution.
    items = (random_bits(key, counters) * unobserved.n_items) >> 32
    observed = unobserved.observed.contains(users, items)
    second = _second(key)
    if users.is_cuda:  # a search for each is cheaper than waiting for the pairs that need one
        return torch.where(observed, unobserved.pick(users, _rank(unobserved, users, counters, second)), items)
    again = observed.nonzero().squeeze(1)
    users = users[again]
    items[again] = unobserved.pick(users, _rank(unobserved, users, counters[again], _of(second, again)))
    return items


def _rank(unobserved: Unobserved, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
    return (random_bits(key, counters) * unobserved.counts.index_select(0, users)) >> 32


def _second(key: Key) -> Key:
    """Another key, for what is drawn again."""
    return key ^ 0x2545F4914F6CDD1D


def _of(key: Key, rows: torch.Tensor) -> Key:
    """The key, or those of some pairs."""
    return key[rows] if isinstance(key, torch.Tensor) else key


def subset(unobserved: Unobserved, users: torch.Tensor, counters: torch.Tensor, key: Key, size: int) -> torch.Tensor:
    """Draw the candidate set M_u of each pair: ``size`` distinct unobserved items, all sets equally probable (E-4.30).

    Uses Floyd's algorithm (Bentley, CACM 1987), without rejection.

    Args:
        users, counters, key: as for :func:`uniform`.

    Returns:
        Items, (size, B), int64. A user with fewer than ``size`` has all of them, then the first again.
    """
    if unobserved.listed or size >= unobserved.most:
        return _subset(unobserved, users, counters, key, size)
    # As in uniform: a set of the whole catalogue, replaced as a whole if it has an observed item.
    items = _floyd(torch.full_like(users, unobserved.n_items), counters, key, size)
    observed = unobserved.observed.contains(users, items).any(0)
    second = _second(key)
    if users.is_cuda:
        return torch.where(observed, _subset(unobserved, users, counters, second, size), items)
    again = observed.nonzero().squeeze(1)
    if len(again):
        items[:, again] = _subset(unobserved, users[again], counters[again], _of(second, again), size)
    return items


def _subset(unobserved: Unobserved, users: torch.Tensor, counters: torch.Tensor, key: Key, size: int) -> torch.Tensor:
    counts = unobserved.counts.index_select(0, users)
    if size >= unobserved.most:  # nothing to draw
        ranks = torch.arange(size, device=users.device).unsqueeze(1).expand(size, len(users))
    else:
        ranks = _floyd(counts, counters, key, size)
    if size > unobserved.fewest:
        ranks = torch.where(ranks < counts, ranks, ranks[0])
    return unobserved.pick(users, ranks)


def _floyd(counts: torch.Tensor, counters: torch.Tensor, key: Key, size: int) -> torch.Tensor:
    """``size`` distinct numbers below each of ``counts`` (B,): (size, B). With a smaller count some are not below."""
    steps = torch.arange(size, device=counts.device).unsqueeze(1)
    # Draw j of k is from the first n - k + j + 1 ranks; if it is in the set already, take the last of them.
    spans = (counts - size).clamp_min(0) + steps + 1
    key = key.repeat(size) if isinstance(key, torch.Tensor) else key
    bits = random_bits(key, (counters * size + steps).flatten()).view(size, len(counts))
    ranks = (bits * spans) >> 32
    for step in range(1, size):
        taken = (ranks[:step] == ranks[step]).any(0)
        torch.where(taken, spans[step] - 1, ranks[step], out=ranks[step])
    return ranks
