"""Batched operations on lists of different lengths, such as the items of each user."""

from __future__ import annotations

from functools import cached_property

import torch


class Lists:
    """Lists in CSR form: list i is ``members[indptr[i]:indptr[i + 1]]``, ascending and distinct."""

    def __init__(self, indptr: torch.Tensor, members: torch.Tensor, n_members: int) -> None:
        """Build from CSR.

        Args:
            indptr: (L + 1,), int64.
            members: (n,), int64, each below ``n_members``.
        """
        self.indptr, self.members = indptr, members
        self.counts = indptr.diff()
        self._span = n_members

    def positions(self, lists: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
        """Position, from 0, of each of ``members`` (B,) in its list, which must contain it."""
        numbers = torch.arange(len(self.counts), device=lists.device)
        owners = torch.repeat_interleave(numbers, self.counts, output_size=len(self.members))
        keys = owners * self._span + self.members
        return torch.searchsorted(keys, lists * self._span + members) - self.indptr.index_select(0, lists)

    def others(self, lists: torch.Tensor, places: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
        """Random members of each list except that at the given position, with replacement; that one if it is alone.

        Args:
            lists: (B,).
            places: (B,), see :meth:`positions`.
            bits: (M, B), from :func:`workloads.sampling.negatives.random_bits`.

        Returns:
            (M, B), int64. The exclusion is E-5.17.
        """
        last = self.counts.index_select(0, lists) - 1
        ranks = (bits * last) >> 32
        ranks = torch.minimum(ranks + (ranks >= places), last)
        return self.members.index_select(0, (ranks + self.indptr.index_select(0, lists)).flatten()).view(bits.shape)

    def having(self, lists: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
        """Whether each of the lists (B,) contains each of the members (n,), boolean, (B, n)."""
        n = len(members)
        columns = members.new_full((self._span,), n)
        columns[members] = torch.arange(n, device=members.device)  # equal members are searched once
        return self.mask(lists, n, columns).index_select(1, columns.index_select(0, members))

    def mask(self, lists: torch.Tensor, n: int, columns: torch.Tensor | None = None) -> torch.Tensor:
        """Mask (B, n) of the members of each list (B,).

        ``columns``: the column of each possible member, n for none. If None, the column is the member.
        """
        flags = torch.zeros(len(lists), n + 1, dtype=torch.bool, device=lists.device)
        if lists.device.type == "cpu":
            places, owned = self.expand(lists)
            flags[places, owned if columns is None else columns.index_select(0, owned)] = True
            return flags[:, :n]
        # On CUDA, computing the number of members would synchronise: every list is padded to the longest.
        ranks = torch.arange(self.longest, device=lists.device)
        at = (self.indptr.index_select(0, lists).unsqueeze(1) + ranks).clamp_max(max(0, len(self.members) - 1))
        owned = self.members.index_select(0, at.flatten()).view(at.shape) if self.longest else at
        owned = owned if columns is None else columns.index_select(0, owned.flatten()).view(at.shape)
        there = ranks < self.counts.index_select(0, lists).unsqueeze(1)
        return flags.scatter_(1, torch.where(there, owned, n), True)[:, :n]

    @cached_property
    def longest(self) -> int:
        """Length of the longest list."""
        return int(self.counts.max()) if len(self.counts) else 0

    def expand(self, lists: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All members of the given lists, one list after the other.

        Returns:
            Indices into ``lists`` and members, (m,) each, m the sum of the lengths.
        """
        counts = self.counts.index_select(0, lists)
        places = torch.repeat_interleave(torch.arange(len(lists), device=lists.device), counts)
        skipped = self.indptr.index_select(0, lists) - (counts.cumsum(0) - counts)
        at = torch.arange(len(places), device=lists.device) + skipped.index_select(0, places)
        return places, self.members.index_select(0, at)
