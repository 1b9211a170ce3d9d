"""Collectives of a data-parallel run; the only module that imports ``torch.distributed``.

Without a process group every function is the identity, so a workload needs no second code path.

Collectives are matched by the order in which each rank issues them, those of DistributedDataParallel included. In a
backward pass this is the order of the graph, so the graph must be the same on all ranks, even on a rank without rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from workloads.contract import Runtime

T = TypeVar("T")

_SENT_BYTES = 2**28
"""Largest part of a tensor that is sent at once."""

_SHOWN = 5
"""Largest number of parameters that an error names."""


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def peer_lost(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank's process died; False for a timeout or too little memory."""
    return _of_collective(error) and not timed_out(error) and "out of memory" not in str(error)


def timed_out(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank did not take part within the time limit."""
    return _of_collective(error) and any(words in str(error).lower() for words in ("timed out", "timeout"))


def _of_collective(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def wrap(model: nn.Module, runtime: Runtime) -> nn.Module:
    """``model`` under DistributedDataParallel where ``runtime.world_size`` > 1, else ``model`` itself.

    DDP broadcasts rank 0's weights here and averages gradients over ranks in every backward pass. To get the
    gradient of the global sum, multiply the local loss by the world size.
    """
    if runtime.world_size == 1:
        return model
    device_ids = [runtime.device] if runtime.device.type == "cuda" else None
    return _Replica(model, device_ids=device_ids, gradient_as_bucket_view=True)


class _Replica(DistributedDataParallel):
    """A replica that names the parameters without a gradient, for which PyTorch's error gives advice on DDP."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        try:
            return super().forward(*inputs, **options)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            numbers = re.search(r"indices which did not receive grad for rank \d+: ([\d ]+)", str(error))
            if numbers is None:
                raise
            names = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
            unused = [names[int(number)] for number in numbers[1].split()]
            more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
            raise RuntimeError(
                f"on several workers each parameter needs a gradient in each step, and the last one gave none to "
                f"{', '.join(unused[:_SHOWN])}{more}: call requires_grad_(False) on parameters that the loss does not "
                "use, or train on one worker"
            ) from None


def without_sync(model: nn.Module) -> AbstractContextManager[object]:
    """A context in which backward does not synchronise gradients; for all micro-batches but the last."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def reduce_sum(value: torch.Tensor) -> torch.Tensor:
    """The sum of ``value`` over ranks, on every rank; ``value`` is not changed."""
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def gather(rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Gather the rows of all ranks, in the order of the ranks; differentiable.

    A rank's gradient is that of the sum of all ranks' losses, as if the rows were in one process. With
    DistributedDataParallel, which averages gradients, multiply each rank's loss by the world size.

    Args:
        rows: the rows of this rank, (counts[rank], ...).
        counts: number of rows of each rank, the same argument on all ranks; counts may differ, and be 0.

    Returns:
        (sum of counts, ...).
    """
    if world_size() == 1:
        return rows
    gathered: torch.Tensor = _Gather.apply(rows, tuple(counts))
    return gathered


def share_rows(rows: torch.Tensor, counts: Sequence[int]) -> None:
    """Fill ``rows``, of which each rank has computed its own share, on every rank; in place, without further copies.

    Args:
        rows: contiguous, (sum of counts, ...).
        counts: number of rows of each rank, in the order of the ranks; may be 0. Ranks that are left out have none.
    """
    first = 0
    for rank, count in enumerate(counts):
        if count and world_size() > 1:
            dist.broadcast(rows[first : first + count], src=rank)
        first += count


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
        ctx.counts = counts
        longest = max(counts)
        # all_gather needs equal shapes: shorter shards are padded.
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        first = sum(ctx.counts[: dist.get_rank()])
        return total[first : first + ctx.counts[dist.get_rank()]], None


def summed(value: torch.Tensor) -> torch.Tensor:
    """The sum of ``value`` over ranks; differentiable, with the gradient of the sum of all ranks' losses."""
    if world_size() == 1:
        return value
    total: torch.Tensor = _Sum.apply(value)
    return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return reduce_sum(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return reduce_sum(gradient.contiguous())


def broadcast(value: T) -> T:
    """Rank 0's value, on every rank. A collective: every rank calls it equally often."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def broadcast_tensors(tensors: Mapping[str, torch.Tensor], device: torch.device) -> Mapping[str, torch.Tensor]:
    """Rank 0's tensors of the CPU, on the CPU of every rank; one after the other, and nothing is pickled.

    Args:
        tensors: by name; those of other ranks are ignored.
        device: of this rank, over which they are sent.
    """
    if world_size() == 1:
        return tensors
    layout = broadcast([(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()])
    if dist.get_rank():
        tensors = {name: torch.empty(shape, dtype=dtype) for name, shape, dtype in layout}
    for name, _, _ in layout:
        content = tensors[name].contiguous().flatten().view(torch.uint8)
        for part in torch.split(content, _SENT_BYTES) if len(content) else ():
            sent = part.to(device)
            dist.broadcast(sent, src=0)
            if dist.get_rank():
                part.copy_(sent)
    return tensors
