"""Batches of texts without padding: layers see real tokens only, attention works in groups of similar length.

A padded batch of sentences is more than half padding. Here the tokens of all texts of a batch are one sequence
(1, T) for linear layers, normalisation, activation and dropout. Attention, which must separate texts, takes groups of
texts of similar length and pads only within a group. It is registered with transformers as :data:`ATTENTION`, so that
its models run unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from workloads.encoders.tokens import Tokens
from workloads.transfer import all_to_device

ATTENTION = "workloads_packed"

_SLACK = {"cpu": 1.25, "cuda": 2.0}
"""Largest ratio of padded to real tokens in a group. Smaller groups pad less but need more calls, which is slower on
GPUs."""


_MULTIPLE = 64
"""The sequence is filled up to a multiple of this, since each new shape of a matrix product costs preparation."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """n texts of similar length, padded to L in attention.

    ``tokens``: their rows in the batch. ``places`` (n L,): the row at each padded position (pads repeat the first row).
    ``real`` (T',): the positions of real tokens. ``mask`` (n, 1, 1, L). The last three are None without padding.
    """

    tokens: slice
    shape: tuple[int, int]
    places: torch.Tensor | None = None
    real: torch.Tensor | None = None
    mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A batch of n texts on a device, ordered by length: T tokens, followed by up to 63 filling tokens.

    ``ids``, ``types`` and ``positions`` (from 0 in each text) are (1, T + filling) int64; ``offsets`` (n + 1,) int64.
    ``order`` (n,): rows of the packed texts in the caller's batch. ``groups``: texts of one attention call. ``size``:
    T.
    """

    ids: torch.Tensor
    types: torch.Tensor
    positions: torch.Tensor
    offsets: torch.Tensor
    order: torch.Tensor
    groups: tuple[Group, ...]
    size: int

    def __len__(self) -> int:
        return len(self.order)


def pack(tokens: Tokens, device: torch.device) -> Packed:
    """Pack all texts of ``tokens`` into a batch, copied to the device at once and without blocking."""
    order = np.argsort(tokens.lengths, kind="stable")
    ordered = tokens.take(order)
    lengths = ordered.lengths
    slack = _SLACK.get(device.type, _SLACK["cuda"])
    positions = np.arange(len(ordered.ids)) - np.repeat(ordered.offsets[:-1], lengths)
    size = len(ordered.ids)
    inputs = np.zeros((3, 1, size + -size % _MULTIPLE), np.int64)
    inputs[:, 0, :size] = ordered.ids, ordered.types, positions
    bounds = _bounds(lengths, slack)
    padded = [_padding(lengths[start:stop]) for start, stop in bounds]
    arrays = [inputs, ordered.offsets, order, *(array for group in padded for array in group)]
    tensors = iter(all_to_device([torch.from_numpy(array) for array in arrays], device))
    ids, types, places = next(tensors)
    return Packed(
        ids=ids,
        types=types,
        positions=places,
        offsets=next(tensors),
        order=next(tensors),
        groups=tuple(
            Group(
                slice(int(ordered.offsets[start]), int(ordered.offsets[stop])),
                (stop - start, int(lengths[stop - 1])),
                *(next(tensors) for _ in group),
            )
            for (start, stop), group in zip(bounds, padded)
        ),
        size=size,
    )


def _bounds(lengths: NDArray[np.int64], slack: float) -> list[tuple[int, int]]:
    """Groups of ascending lengths as [start, stop), as large as ``slack`` allows. Empty texts are in no group."""
    bounds = []
    real = 0
    start = int(np.searchsorted(lengths, 1))
    for stop, length in enumerate(lengths[start:].tolist(), start):
        if real and length * (stop + 1 - start) > slack * (real + length):
            bounds.append((start, stop))
            start, real = stop, 0
        real += length
    return [*bounds, (start, len(lengths))] if real else bounds


def _padding(lengths: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """``places``, ``real`` and ``mask`` of a group with these ascending lengths; none where they are equal."""
    longest = lengths[-1]
    if lengths[0] == longest:
        return ()
    real = np.arange(longest) < lengths[:, None]
    places = np.zeros(real.shape, np.int64)
    places[real] = np.arange(lengths.sum())
    return places.ravel(), np.flatnonzero(real), real[:, None, None]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    groups: tuple[Group, ...],
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Self-attention within each text, with the signature that transformers calls.

    Args:
        query, key, value: (1, heads, T, d).
        groups: groups of the batch, passed to the model's ``forward``.

    Returns:
        (1, T, heads, d), zero for filling tokens, and None for the weights.
    """
    del module, attention_mask
    rows = [part.squeeze(0).transpose(0, 1) for part in (query, key, value)]  # (T, heads, d)
    # On CPUs, attention with small heads is several times slower in bf16 than in float32.
    wide = query.device.type == "cpu" and query.dtype != torch.float32
    packs = []
    for group in groups:
        q, k, v = (_block(part[group.tokens].float() if wide else part[group.tokens], group) for part in rows)
        block = scaled_dot_product_attention(q, k, v, attn_mask=group.mask, dropout_p=dropout, scale=scaling)
        tokens = block.transpose(1, 2).reshape(-1, *rows[0].shape[1:])
        packs.append(tokens if group.real is None else tokens.index_select(0, group.real))
    read = torch.cat(packs)
    return pad(read, (0, 0, 0, 0, 0, query.shape[2] - len(read))).to(query.dtype).unsqueeze(0), None


def _block(rows: torch.Tensor, group: Group) -> torch.Tensor:
    """Padded tokens of a group, (n, heads, L, d)."""
    padded = rows if group.places is None else rows.index_select(0, group.places)
    return padded.view(*group.shape, *rows.shape[1:]).transpose(1, 2)


AttentionInterface.register(ATTENTION, attend)
