"""Arithmetic of matrix products and convolutions on CUDA: full float32, except in training with TF32."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from workloads.contract import Precision, Runtime


@contextmanager
def training_precision(precision: Precision) -> Iterator[None]:
    """TF32 in the block for ``tf32``, else full float32 (10 and 23 bits of mantissa); float32 again after it.

    PyTorch's own default is TF32 in convolutions.
    """
    _set_tf32(precision == "tf32")
    try:
        yield
    finally:
        _set_tf32(False)


def _set_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def use_full_float32() -> None:
    """Have this process compute in full float32 outside of :func:`training_precision`, as in evaluation."""
    _set_tf32(False)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """In the block, measure which convolution is fastest for each shape, unless deterministic algorithms are in use.

    It pays where shapes repeat. Which one is chosen depends on the machine.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


_chosen_here = False
"""Whether deterministic algorithms were chosen by this module. A user's own choice is kept."""


def use_deterministic_algorithms(deterministic: bool) -> None:
    """Have this process use deterministic algorithms only; an operation without one then raises RuntimeError.

    cuBLAS reads its setting when it is first used, so on CUDA this has to come before the first matrix product.
    """
    global _chosen_here
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        _chosen_here = _chosen_here or not torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
    elif _chosen_here:
        torch.use_deterministic_algorithms(False)
        _chosen_here = False


def encoder_precision(runtime: Runtime) -> torch.autocast:
    """A context in which an encoder computes in the precision of ``runtime``."""
    return torch.autocast(runtime.device.type, torch.bfloat16, enabled=runtime.precision == "bf16")
