"""Copies from the host to a device that do not make the host wait."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

_ALIGNMENT = 16
"""Bytes at whose multiples each tensor begins, as every dtype allows."""


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on ``device``, for CUDA from pinned memory."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def all_to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Several small CPU tensors on ``device``, for CUDA in a single copy from pinned memory."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    packed = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    for tensor, start in zip(tensors, starts):
        _part(packed, start, tensor).copy_(tensor)
    there = packed.to(device, non_blocking=True)
    return [_part(there, start, tensor) for tensor, start in zip(tensors, starts)]


@lru_cache(maxsize=64, typed=True)
def constant(values: float | tuple[float, ...], device: torch.device) -> torch.Tensor:
    """A constant on ``device``, copied there once."""
    return torch.tensor(values, device=device)


def _part(packed: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor:
    """The part of a byte tensor that holds ``tensor``, in its dtype and shape."""
    return packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
