"""Negative items for (user, positive item) pairs, drawn on the device and without rejection.

A draw is a pure function of (key, counter): the counter is the pair's position in the global order of the epoch,
so that one process and many workers draw the same negatives, and a resumed run those of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

LISTED = 2**25
"""Largest users x items for which the unobserved items are listed (4 bytes each); above it they are searched."""


def random_bits(key: int, counters: torch.Tensor) -> torch.Tensor:
    """32 random bits for each counter, as int64 in [0, 2^32); the same on every device.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of ``key + counter * golden gamma``; the upper half is kept.

    Args:
        key: 63 bits, from :func:`workloads.seeding.derive`.
        counters: (B,), int64.
    """
    z = (counters * _signed(0x9E3779B97F4A7C15)).add_(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        # int64 shifts keep the sign: the mask makes it the unsigned shift of the paper.
        z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    z.bitwise_xor_((z >> 31).bitwise_and_((1 << 33) - 1))
    return z.bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


class Unobserved:
    """The items each user has not interacted with, I_u^- of the thesis, in ascending order.

    Two forms with equal answers: listed for small catalogues (one gather a draw), else found by binary search
    among the positives (memory of the interactions alone).
    """

    def __init__(self, indptr: torch.Tensor, items: torch.Tensor, n_items: int, listed: bool | None = None) -> None:
        """From each user's positives: ``items[indptr[u]:indptr[u + 1]]``, ascending and distinct.

        Args:
            indptr: (U + 1,), int64.
            items: (n,), int64.
            n_items: the size I of the catalogue.
            listed: choose the form; None chooses by size.
        """
        n_users = len(indptr) - 1
        observed = indptr.diff()
        self.counts = n_items - observed
        """|I_u^-|, (U,), int64."""
        self._last = n_items - 1
        self._listed = n_users * n_items <= LISTED if listed is None else listed
        users = torch.repeat_interleave(torch.arange(n_users, device=items.device), observed)
        if self._listed:
            mask = torch.ones(n_users, n_items, dtype=torch.bool, device=items.device)
            mask[users, items] = False
            every = torch.arange(n_items, dtype=torch.int32, device=items.device).expand(n_users, n_items)
            self._items = every.masked_select(mask)
            self._start = self.counts.cumsum(0) - self.counts
        else:
            # An item's place among the positives, subtracted, leaves how many unobserved items lie below it.
            below = items - (torch.arange(len(items), device=items.device) - indptr[users])
            self._span = n_items + 1
            self._keys = users * self._span + below
            self._start = indptr

    def pick(self, users: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
        """The ``ranks``-th unobserved item of each of ``users``: (B,), int64, and ranks from 0.

        A rank at or above ``counts[user]`` has no answer; the item given for it is in the catalogue, nothing more.
        """
        if self._listed:
            at = self._start.index_select(0, users).add_(ranks).clamp_(max=len(self._items) - 1)
            return self._items.index_select(0, at).long()
        smaller = torch.searchsorted(self._keys, users * self._span + ranks, right=True) - self._start.index_select(
            0, users
        )
        return (ranks + smaller).clamp_(max=self._last)


Sampler: TypeAlias = Callable[[Unobserved, torch.Tensor, torch.Tensor, int], torch.Tensor]


def uniform(unobserved: Unobserved, users: torch.Tensor, counters: torch.Tensor, key: int) -> torch.Tensor:
    """One item for each pair, uniform over the user's unobserved items (RNS, thesis 4.5.1.2).

    Args:
        unobserved: I_u^- of every user; a user without any must not be asked for.
        users: (B,), int64.
        counters: (B,), int64, one of its own for each draw of an epoch.
        key: the epoch's key, from :func:`workloads.seeding.derive`.

    Returns:
        Items, (B,), int64. The bias of mapping 32 bits to n items is at most n / 2^32.
    """
    ranks = (random_bits(key, counters) * unobserved.counts.index_select(0, users)) >> 32
    return unobserved.pick(users, ranks)


SAMPLERS: Mapping[str, Sampler] = {"uniform": uniform}
"""The samplers a parameter ``sampler`` can name."""
