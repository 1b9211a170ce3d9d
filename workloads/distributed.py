"""Collectives of a data-parallel run; the only module that imports ``torch.distributed``.

Everything here is the identity where no process group is up, so that a workload is written once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from workloads.contract import Runtime

T = TypeVar("T")


def world_size() -> int:
    """The number of ranks; 1 where no process group is up."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def wrap(model: nn.Module, runtime: Runtime) -> nn.Module:
    """``model`` under DistributedDataParallel where ``runtime.world_size`` > 1, else ``model`` itself.

    DDP sends rank 0's weights to all ranks here, and averages gradients over ranks in every backward: scale the
    local loss by the world size where the global sum is wanted.
    """
    if runtime.world_size == 1:
        return model
    device_ids = [runtime.device] if runtime.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


def without_sync(model: nn.Module) -> AbstractContextManager[object]:
    """A context whose backward keeps its gradients local: for all micro-batches but the last."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def reduce_sum(value: torch.Tensor) -> torch.Tensor:
    """The sum of ``value`` over ranks, on every rank; ``value`` is not changed."""
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def agree(value: T) -> T:
    """Rank 0's value, on every rank. A collective: every rank calls it equally often."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
