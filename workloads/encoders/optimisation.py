"""How text encoders are fine-tuned: AdamW that leaves biases and norms undecayed, warm-up and linear decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer


def adamw(module: nn.Module, lr: float, weight_decay: float) -> AdamW:
    """AdamW in one fused launch. Biases and normalisation layers, all that has one dimension, do not decay.

    Build it when the parameters are on their device.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, fused=True)


def warmup_linear(step: int, steps: int, warmup: int) -> float:
    """Factor on the learning rate of a step from 0: rising over ``warmup`` steps, then falling to 0 at ``steps``.

    Beyond ``steps`` it stays at what the last step had, so that a run that is continued still learns.
    """
    if step < warmup:
        return (step + 1) / warmup
    return max(1, steps - step) / max(1, steps - warmup)


def take_step(optimizer: Optimizer, lr: float) -> None:
    """Update at this learning rate by the gradients that are there, and clear them."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


def optimizer_state(optimizer: Optimizer, module: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """What the optimiser remembers of each parameter, by the parameter's name: no learning rate, no weight decay."""
    named = module.named_parameters()
    return {name: dict(optimizer.state[parameter]) for name, parameter in named if parameter in optimizer.state}


def load_optimizer_state(optimizer: Optimizer, module: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Copy what :func:`optimizer_state` gave; parameters that it does not name start again."""
    optimizer.state.clear()
    parameters = dict(module.named_parameters())
    for name, kept in state.items():
        optimizer.state[parameters[name]] = {key: _laid_out(value, parameters[name]) for key, value in kept.items()}


def _laid_out(value: Any, parameter: torch.Tensor) -> Any:
    """A copy; what is shaped like the parameter also in its layout (channels last), as a fused step wants it."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, requires_grad=False).copy_(value)
    return value.detach().clone().to(parameter.device)
