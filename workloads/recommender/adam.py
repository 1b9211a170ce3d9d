"""Adam on one tensor."""

from __future__ import annotations

import torch
from torch.optim.adam import adam

from workloads.contract import State


class Adam:
    """Adam (Kingma and Ba, ICLR 2015) with coupled weight decay: the L2 gradient of every row joins the loss's.

    ``torch.optim.Adam``'s own kernel without its front end, which imports a compiler and costs each process a
    second and 100 MB (measured). The moments are plain tensors from the start, so a state always has all of them.
    """

    def __init__(self, parameter: torch.Tensor, weight_decay: float) -> None:
        self.parameter, self.weight_decay = parameter, weight_decay
        self.exp_avg = torch.zeros_like(parameter, requires_grad=False)
        self.exp_avg_sq = torch.zeros_like(parameter, requires_grad=False)
        self.step = torch.zeros((), device=parameter.device)

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """One step along the parameter's gradient, which is dropped."""
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
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=self.weight_decay,
            eps=1e-8,
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
