"""Fine-tuning of text encoders: AdamW without decay of biases and norms, warm-up and linear decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer


def adamw(module: nn.Module, lr: float, weight_decay: float) -> AdamW:
    """Fused AdamW. Parameters with one dimension (biases and normalisation layers) have no weight decay.

    The parameters must be on their device already.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, fused=True)


def warmup_linear(step: int, steps: int, warmup: int) -> float:
    """Factor on the learning rate at a step, from 0: rises over ``warmup`` steps, then falls to 0 at ``steps``.

    After ``steps`` it keeps the value of the last step, so that a continued run still learns.
    """
    if step < warmup:
        return (step + 1) / warmup
    return max(1, steps - step) / max(1, steps - warmup)


def take_step(optimizer: Optimizer, lr: float) -> None:
    """Update with this learning rate and the current gradients, and clear them."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


def optimizer_state(optimizer: Optimizer, module: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """Optimiser state by parameter name, without learning rate and weight decay."""
    named = module.named_parameters()
    return {name: dict(optimizer.state[parameter]) for name, parameter in named if parameter in optimizer.state}


def load_optimizer_state(optimizer: Optimizer, module: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Copy a state of :func:`optimizer_state`. Parameters without state start from scratch."""
    optimizer.state.clear()
    parameters = dict(module.named_parameters())
    for name, kept in state.items():
        optimizer.state[parameters[name]] = {key: _laid_out(value, parameters[name]) for key, value in kept.items()}


def _laid_out(value: Any, parameter: torch.Tensor) -> Any:
    """A copy; with the parameter's shape also in its memory layout (channels last), as a fused step requires."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, requires_grad=False).copy_(value)
    return value.detach().clone().to(parameter.device)
