"""A set of (user, item) pairs with batched lookup."""

from __future__ import annotations

from collections.abc import Mapping

import torch

LISTED = 2**25
"""Largest users x items with a flag for every possible pair; above it, memory is proportional to the set."""

_HASH = -7046029254386353131  # 2^64 over the golden ratio, odd (Knuth, TAOCP 6.4)


class PairSet:
    """Set of pairs: a flag for each possible pair if these are few, else a binary search among the members.

    On a CPU, where a search takes a hundred nanoseconds, a bit table with about thirty bits per member is read first,
    and only pairs with a set bit are searched.
    """

    def __init__(
        self,
        users: torch.Tensor,
        items: torch.Tensor,
        n_users: int,
        n_items: int,
        made: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Build from the pairs' users and items, (n,) int64 each, in any order.

        ``made``: :meth:`tensors` of the same set, which then are not computed again.
        """
        self._n_items = n_items
        self._members = len(users)
        self._flags: torch.Tensor | None = None
        self._bits: torch.Tensor | None = None
        if made is not None:
            self._keys, self._flags = made["keys"], made.get("flags")
            self._bits = made.get("bits") if users.device.type == "cpu" else None
            return
        self._keys = (users * n_items + items).sort().values
        if n_users * n_items <= LISTED:
            self._flags = torch.zeros(n_users * n_items, dtype=torch.bool, device=users.device)
            self._flags[self._keys] = True
        elif users.device.type == "cpu":
            self._bits = torch.zeros(table_bytes(len(users)), dtype=torch.uint8)
            set_bits(self._bits, table_slots(self._keys, len(users)).unique())  # type: ignore[no-untyped-call]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that was computed, by name."""
        parts = {"keys": self._keys, "flags": self._flags, "bits": self._bits}
        return {name: tensor for name, tensor in parts.items() if tensor is not None}

    def contains(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Whether each pair is in the set, boolean, with the broadcast shape of both."""
        keys = users * self._n_items + items
        if self._flags is not None:
            return self._flags.index_select(0, keys.flatten()).view(keys.shape)
        if self._bits is None:
            return self._searched(keys)
        slots = table_slots(keys.flatten(), self._members)
        is_pair = ((self._bits.index_select(0, slots >> 3) >> (slots & 7).to(torch.uint8)) & 1).bool()
        maybe = is_pair.nonzero().squeeze(1)
        is_pair[maybe] = self._searched(keys.flatten()[maybe])
        return is_pair.view(keys.shape)

    def _searched(self, keys: torch.Tensor) -> torch.Tensor:
        if not len(self._keys):
            return torch.zeros_like(keys, dtype=torch.bool)
        at = torch.searchsorted(self._keys, keys).clamp_max(len(self._keys) - 1)
        return self._keys[at] == keys


def table_bytes(members: int) -> int:
    """Size of the bit table of a set."""
    return 1 << (61 - _shift(members))


def table_slots(keys: torch.Tensor, members: int) -> torch.Tensor:
    """The bit of each key in the table of a set."""
    shift = _shift(members)
    return (keys * _HASH).bitwise_right_shift_(shift).bitwise_and_((1 << (64 - shift)) - 1)


def set_bits(table: torch.Tensor, slots: torch.Tensor) -> None:
    """Set bits of a table, uint8: distinct ones, none of which is set."""
    table.index_add_(0, slots >> 3, (1 << (slots & 7)).to(torch.uint8))


def _shift(members: int) -> int:
    return 64 - max(6, (32 * members).bit_length())
