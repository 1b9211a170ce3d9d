"""Plain SGD: in batches, and one triple at a time by the compiled loop of ``sequential/``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workloads.contract import Runtime
from workloads.data.interactions.splits import user_csr
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.epoch_metrics import can_measure_quality
from workloads.recommender.params import Params
from workloads.recommender.samplers import prior_table
from workloads.sampling.bayesian import warm_lambda

if TYPE_CHECKING:
    from workloads.recommender.sequential.mf import Lists, SequentialMF

_OWN = ("candidates", "aobpr_lambda", "bns_uniform_epochs", "beta", "rho", "group", "lam", "threshold")
"""Parameters with the same name in the loop's settings."""

INITIAL = 0.1
"""Standard deviation of the initial tables, the root of the thesis' regularisation constant."""


class BatchedSGD:
    """Θ ← Θ - α Σ c (∂loss/∂Θ + reg Θ) over the triples of a batch, thesis (3.31) and (3.32), on any device.

    A sum, not a mean: with small batches ``lr`` and ``reg`` have the same effect as in sequential SGD, except that the
    triples of a batch share the old tables. A triple decays only its own rows.
    """

    def __init__(self, parameter: torch.Tensor, reg: float) -> None:
        """``parameter``: Θ, the table of all nodes (N, d). ``reg``: at least 0."""
        self.parameter = parameter
        self.reg = reg

    def penalty(self, nodes: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """reg / 2 Σ c |Θ_n|², a scalar, of nodes (n, b), with the credence (b,) of their interactions or None for 1."""
        squares = self.parameter.index_select(0, nodes.flatten()).square().sum(1).view(nodes.shape)
        return self.reg / 2 * (squares if weights is None else squares * weights).sum()

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """Take one step with the parameter's gradient, and clear it."""
        assert self.parameter.grad is not None
        self.parameter.sub_(self.parameter.grad, alpha=lr)
        self.parameter.grad = None


class SequentialSGD:
    """Plain SGD on a CPU, one triple at a time, by a loop that is compiled at the first epoch."""

    def __init__(
        self, params: Params, runtime: Runtime, data: RecommenderData, table: torch.Tensor, reg: float
    ) -> None:
        """``table``: embeddings of all nodes (N, d), updated in place. ``reg``: at least 0.

        Raises:
            ValueError: the device is no CPU.
        """
        if runtime.device.type != "cpu":
            raise ValueError(
                f"optimizer=sgd runs on a CPU, not on {runtime.device.type}. "
                "Set optimizer=sgd_batched or optimizer=adam"
            )
        self.params = params
        self.runtime = runtime
        self.data = data
        self.table = table
        self.reg = reg

    def train_epoch(self, epoch: int, lr: float, weights: torch.Tensor | None) -> dict[str, float]:
        """Train for a pass; ``weights`` of the data's pairs (n,), or None for ones."""
        lam = self.params.bns_lambda
        return self._loop.train_epoch(
            epoch,
            lr=lr,
            bns_lambda=warm_lambda(epoch) if lam == "warm" else lam,
            credence=None if weights is None else _of_all(self.data, weights),
        )

    @cached_property
    def _loop(self) -> SequentialMF:
        from workloads.recommender.sequential.mf import SequentialMF, Settings

        params = self.params
        data = self.data
        own: dict[str, Any] = {name: getattr(params, name) for name in _OWN if getattr(params, name) is not None}
        settings = Settings(
            loss="bpr" if params.loss == "bprac" else params.loss,  # type: ignore[arg-type]  # checked by Params
            sampler=params.sampler,  # type: ignore[arg-type]
            reg=self.reg,
            threads=params.threads or 1,
            **own,
        )
        users, items = torch.split(self.table, [data.n_users, data.n_items])
        prior = None
        groups = None
        if params.bns_prior not in (None, "label"):
            prior, groups = prior_table(params, data, self.runtime.data)
        planted = None if data.truth is None else user_csr(np.argwhere(data.truth), data.n_users)
        return SequentialMF(
            users,
            items,
            data.train.indptr,
            data.train.items,
            settings,
            self.runtime.seed,
            prior=None if prior is None else prior.numpy(),
            group=None if groups is None else groups.numpy(),
            truth=self._truth(planted),
            planted=planted,
        )

    def _truth(self, planted: Lists | None) -> Lists | None:
        """Items that users like besides training items; None if neither the sampler nor a measure needs them."""
        truth = self.params.truth
        if truth is None or not (self.params.sampler == "bns_oracle" or can_measure_quality(self.params, self.runtime)):
            return None
        if truth == "planted":
            return planted
        history = self.data.test if truth == "test" else self.data.validation
        return history.indptr, history.items


def _of_all(data: RecommenderData, weights: torch.Tensor) -> torch.Tensor:
    """Expand weights of the data's pairs to all training interactions; 0 for users without a negative."""
    full = weights.new_zeros(len(data.train.items))
    full[data.unobserved.counts[data.train.users] > 0] = weights
    return full
