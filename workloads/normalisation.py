"""Batch normalisation over the batches of all ranks, so that training does not depend on the number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workloads.distributed import summed

if TYPE_CHECKING:
    from workloads.contract import Runtime

M = TypeVar("M", bound=nn.Module)


def synchronised(model: M, runtime: Runtime) -> M:
    """Synchronise the batch normalisations of ``model`` over ranks, if there are several.

    On CUDA they become PyTorch's SyncBatchNorm, which supports no other device; elsewhere :class:`SummedBatchNorm`.
    Names in the state do not change.

    Raises:
        ValueError: a batch normalisation is one with further parts, such as an activation.
    """
    if runtime.world_size == 1:
        return model
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and type(module) not in plain:
            raise ValueError(
                f"{type(module).__name__} does more than normalise a batch, which several workers cannot synchronise. "
                "Train with one worker"
            )
    if runtime.device.type == "cuda":
        return cast("M", nn.SyncBatchNorm.convert_sync_batchnorm(model))  # type: ignore[no-untyped-call]
    return cast("M", _converted(model))


class SummedBatchNorm(_BatchNorm):
    """Batch normalisation by the moments of all ranks' batches, in float32 at least; inputs have 2 or more axes."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch normalisation needs a batch and channels, got {input.dim()} dimensions")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        over = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        size = x.new_tensor([x.numel() / x.shape[1]])
        sums = summed(torch.cat([size, x.sum(over)]))
        count = sums[0]
        mean = sums[1:] / count
        centred = x - mean.view(shape)
        variance = summed(centred.square().sum(over)) / count
        if self.track_running_stats:
            self._track(mean.detach(), (variance * count / (count - 1)).detach())
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def _converted(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        ours = SummedBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            setattr(ours, name, value)
        return ours.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _converted(child))
    return module
