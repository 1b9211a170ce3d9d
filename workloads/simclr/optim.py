"""Optimisers by name, including LARS, and the learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from workloads.simclr.losses import OPTIMIZERS
from workloads.simclr.params import Params

TRUST = 1e-3
"""LARS' trust coefficient η (You et al., 2017; SimCLR's code)."""


def learning_rate(params: Params, step: int, steps: int) -> float:
    """Learning rate at a step, from 0, of ``steps`` in the whole run: linear warm-up, cosine decay to 0. SimCLR 2.2."""
    warm = params.warmup * steps
    if step < warm:
        return params.lr * (step + 1) / math.ceil(warm)
    if params.schedule == "constant":
        return params.lr
    done = min(1.0, (step - warm) / max(1.0, steps - warm))
    return params.lr * (1 + math.cos(math.pi * done)) / 2


def optimizer_of(model: nn.Module, params: Params) -> torch.optim.Optimizer:
    """An optimiser of PyTorch, or LARS. Biases and normalisations have no weight decay, as in SimCLR's code."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    spared = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": decayed, "weight_decay": params.weight_decay, "adapted": True},
        {"params": spared, "weight_decay": 0.0, "adapted": False},
    ]
    row = OPTIMIZERS[params.optimizer]
    own = {name: getattr(params, name) for name in row.params}
    if row.fused:
        own["fused"] = all(parameter.is_cuda for parameter in model.parameters())
    optimizer: torch.optim.Optimizer = row.load()(groups, lr=params.lr, **own)
    return optimizer


class LARS(torch.optim.Optimizer):
    """SGD with momentum and a learning rate scaled by ``η |w| / |g|`` in each layer. You et al., 2017; SimCLR 2.2.

    Groups with ``adapted`` False (biases, normalisations) are updated by plain SGD with momentum.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "adapted": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update, without synchronisation with the device."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            updates: list[torch.Tensor] = [parameter.grad for parameter in parameters]
            if group["weight_decay"]:
                updates = list(torch._foreach_add(updates, parameters, alpha=group["weight_decay"]))
            if group["adapted"]:
                norms = torch.stack(torch._foreach_norm(parameters))
                sizes = torch.stack(torch._foreach_norm(updates))
                trust = torch.where((norms > 0) & (sizes > 0), TRUST * norms / sizes, 1.0)
                updates = list(torch._foreach_mul(updates, trust.unbind()))
            for parameter, update in zip(parameters, updates):
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                state["momentum_buffer"].mul_(group["momentum"]).add_(update)
            torch._foreach_add_(
                parameters, [self.state[parameter]["momentum_buffer"] for parameter in parameters], alpha=-group["lr"]
            )
