"""Weights in the form in which a registered model gets them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
"""The floating-point types that NumPy has. Values of the others, such as bfloat16, are exact in float32."""


def served_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous tensors on the CPU, of types that NumPy has; tied weights, which share memory, are copied."""
    plain: dict[str, torch.Tensor] = {}
    storages = set[int]()
    for name, weight in weights.items():
        tensor = weight.detach().cpu().contiguous()
        if tensor.is_floating_point() and tensor.dtype not in NUMPY_FLOATS:
            tensor = tensor.float()
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    return plain
