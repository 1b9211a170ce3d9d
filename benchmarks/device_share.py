"""Share of a GPU's peak (by operation count) and time (by the profiler) that training uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn


def flops_per_sample(model: nn.Module, inputs: torch.Tensor) -> float:
    """Floating-point operations per sample of matrix products and convolutions, forward and backward.

    Each multiply-add counts as two, as in a device's peak. Recomputation, normalisation and additions do not count. The
    inputs have no gradient, as in training. The model's gradients are None afterwards.

    Args:
        inputs: a few samples, (n, ...).
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model(inputs).float().sum())
    model.zero_grad()
    return counter.get_total_flops() / len(inputs)


def busy_share(work: Callable[[], object]) -> float:
    """Share of time, from the first kernel's start to the last one's end, in which a kernel or copy runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    if not spans:
        raise SystemExit("the profiler saw no kernel: does this driver allow it (CUPTI)?")
    return covered(spans) / (max(end for _, end in spans) - min(start for start, _ in spans))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
