"""Adam for one tensor, and for stacked tensors with separate learning rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim.adam import adam

from workloads.contract import State

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Adam (Kingma and Ba, ICLR 2015) with coupled weight decay: the L2 gradient of every row is added.

    Calls the kernel of ``torch.optim.Adam`` directly: its front end imports a compiler and costs each process a second
    and 100 MB (measured). The moments exist from the start, so a state always has all of them.
    """

    def __init__(self, parameter: torch.Tensor, weight_decay: float) -> None:
        self.parameter = parameter
        self.weight_decay = weight_decay
        self.exp_avg = torch.zeros_like(parameter, requires_grad=False)
        self.exp_avg_sq = torch.zeros_like(parameter, requires_grad=False)
        self.step = torch.zeros((), device=parameter.device)

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """Take one step with the parameter's gradient, and clear it."""
        assert self.parameter.grad is not None
        adam(
            [self.parameter],
            [self.parameter.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.step],
            fused=True,
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=lr,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )
        self.parameter.grad = None

    def state_dict(self) -> State:
        """The moments and the number of steps, not copied."""
        return {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "step": self.step}

    def load_state_dict(self, state: State) -> None:
        """Copy a state of the same shapes; the weight decay stays."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class StackedAdam:
    """Adam steps of K optimisers in the kernel launches of one, for devices where launches dominate the cost.

    The fused kernel takes one learning rate for all tensors. This class applies its formula with one rate each; the
    results are equal within rounding.
    """

    def __init__(
        self, stack: Sequence[torch.Tensor], lr: Sequence[float], weight_decay: Sequence[float], steps: int
    ) -> None:
        """For the next ``steps`` steps of K optimisers: their parameters, two moments (K, ...) and steps (K,)."""
        self.parameters, self.exp_avg, self.exp_avg_sq, self.step = stack
        step = self.step
        column = (-1, *[1] * (self.parameters.dim() - 1))
        self.weight_decay = self.parameters.new_tensor(weight_decay).view(column)
        # In float64: 1 - beta^t of the first steps has half its digits in float32.
        rates = torch.tensor(lr, dtype=torch.float64, device=step.device)
        counts = step + torch.arange(1, steps + 1, dtype=torch.float64, device=step.device)[:, None]
        sizes = (rates / (1 - BETA1**counts)).float()
        roots = (1 - BETA2**counts).sqrt().float()
        self._sizes = iter([row.view(column) for row in sizes.unbind()])
        self._roots = iter([row.view(column) for row in roots.unbind()])

    @torch.no_grad()
    def update(self, gradient: torch.Tensor) -> None:
        """Take one step with ``gradient`` (K, ...), which is overwritten."""
        gradient.addcmul_(self.parameters, self.weight_decay)
        self.exp_avg.lerp_(gradient, 1 - BETA1)
        self.exp_avg_sq.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        spread = torch.sqrt(self.exp_avg_sq, out=gradient).div_(next(self._roots)).add_(EPSILON)
        self.parameters.sub_((self.exp_avg / spread).mul_(next(self._sizes)))
        self.step += 1
