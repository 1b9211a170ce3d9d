"""Popularity-biased negative sampling (PNS), exact and without rejection."""

from __future__ import annotations

import torch
from torch.nn import functional

from workloads.sampling.lists import Lists
from workloads.sampling.negatives import Key, Unobserved, random_bits, uniform
from workloads.sampling.sampler import Sampler

_TOTAL = 2**31
"""Approximate sum of all weights, which are integers so that all devices draw the same."""


class Popularity(Sampler):
    """PNS: an unobserved item with a probability proportional to popularity^0.75. Thesis 4.5.1.2.

    Items are adjacent intervals on a line, as long as their weights. A random point of the line without the user's
    positives is mapped to the whole line by adding the lengths of the positives before it, found by binary search.
    """

    def __init__(self, unobserved: Unobserved, observed: Lists, popularity: torch.Tensor) -> None:
        """``popularity``: training interactions of each item, (I,).

        Items without interactions are drawn only for users who have no others left; then all are equally probable.
        """
        weights = torch.where(popularity > 0, popularity.double() ** 0.75, 0.0)
        lengths = (weights * (_TOTAL / weights.sum().clamp_min(1e-300))).long()
        lengths = torch.where(popularity > 0, lengths.clamp_min(1), 0)
        self._unobserved, self._observed = unobserved, observed
        self._ends = lengths.cumsum(0)
        own = lengths.index_select(0, observed.members)
        self._passed = functional.pad(own.cumsum(0), (1, 0))  # over all lists; a list's values are differences
        before = self._passed.index_select(0, observed.indptr)
        self._left = self._ends[-1] - before.diff()
        users, items = observed.expand(torch.arange(len(observed.counts), device=own.device))
        below = (self._ends - lengths)[items] - (self._passed[:-1] - before[users])
        self._span = int(self._ends[-1]) + 1
        self._keys = users * self._span + below
        self._all_left = bool((self._left[unobserved.counts > 0] > 0).all())

    def draw(self, users: torch.Tensor, counters: torch.Tensor, key: Key) -> torch.Tensor:
        """Draw an unobserved item per pair, (1, B)."""
        point = (random_bits(key, counters) * self._left.index_select(0, users)) >> 32
        start = self._observed.indptr.index_select(0, users)
        passed = torch.searchsorted(self._keys, users * self._span + point, right=True)
        point = point + self._passed.index_select(0, passed) - self._passed.index_select(0, start)
        items = torch.searchsorted(self._ends, point, right=True).clamp_max(len(self._ends) - 1)
        if not self._all_left:
            nothing = self._left.index_select(0, users) == 0
            items = torch.where(nothing, uniform(self._unobserved, users, counters, key), items)
        return items.unsqueeze(0)
