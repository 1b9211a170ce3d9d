"""Calibration by the current model before an epoch: α of BCL from its AUC, credences of interactions (BPRAC)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from workloads.contract import Runtime
from workloads.losses.contrastive import alpha_from_auc
from workloads.recommender.credence import (
    EmpiricalScores,
    GaussianFactors,
    ScoreDistribution,
    credence,
    interaction_scores,
    ks_distance,
    prior_log_odds,
    sampled_scores,
)
from workloads.recommender.dataset import History, RecommenderData
from workloads.recommender.evaluation import mean_auc
from workloads.recommender.params import Params
from workloads.recommender.quality import wrong_share
from workloads.seeding import derive, generator


@dataclass(frozen=True, slots=True)
class Calibration:
    """``settings`` of the loss, ``weights`` of the interactions (n,) or None for ones, ``metrics`` to report.

    ``mean_weight`` is that of the interactions.
    """

    settings: Mapping[str, Any]
    weights: torch.Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    mean_weight: float = 1.0

    def of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """The weights of some interactions (b,), or None for ones."""
        return None if self.weights is None else self.weights.index_select(0, rows)


@dataclass(slots=True)
class Calibrator:
    """Calibrates the loss ``settings`` of an experiment by the ``embeddings`` of its model, users' and items'.

    ``held``: the credences of the last E-step (n,), if BPRAC has fewer of these than epochs.
    """

    params: Params
    runtime: Runtime
    data: RecommenderData
    settings: Mapping[str, Any]
    embeddings: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    held: torch.Tensor | None = None

    @torch.no_grad()
    def __call__(self, epoch: int) -> Calibration:
        """Calibrate for an epoch, with ``fpr`` if it can be measured. A collective; equal on all workers."""
        result = self._calibrated(epoch)
        wrong = self.data.wrong
        if wrong is None:
            return result
        return replace(result, metrics={**result.metrics, "fpr": wrong_share(wrong, result.weights).item()})

    def _calibrated(self, epoch: int) -> Calibration:
        form = self.settings.get("alpha")
        if form in ("auc", "auc_literal"):
            alpha = alpha_from_auc(self._auc(epoch), literal=form == "auc_literal")
            return Calibration({**self.settings, "alpha": alpha}, metrics={"alpha": alpha})
        return self._credence(epoch) if self.params.loss == "bprac" else Calibration(self.settings)

    def _auc(self, epoch: int) -> float:
        """AUC on validation; in a refit, which has no validation part, on the training interactions (E-6.21)."""
        data = self.data
        runtime = self.runtime
        if runtime.holdout:
            relevant, excluded = data.validation, data.train
        else:
            relevant, excluded = data.train, History.of(np.empty((0, 2), np.int32), data.n_users, runtime.device)
        users, items = self.embeddings()
        key = derive(runtime.seed, "auc", epoch)
        return mean_auc(users, items, relevant, excluded, data.unknown, key, runtime.rank, runtime.world_size)

    def _credence(self, epoch: int) -> Calibration:
        """The E-step of BPRAC, thesis (3.27), or the credences of the last one."""
        data = self.data
        params = self.params
        users, items = self.embeddings()
        sample = sampled_scores(users, items, generator(self.runtime.seed, "credence", epoch), n=2**13)
        assert params.credence is not None
        distribution = score_distribution(params, users, items, sample)
        weights = self.held
        if weights is None or is_e_step(epoch, params.e_steps, self.runtime.epochs):
            owners = data.pairs[0]
            chosen = data.pairs[1] - data.n_users
            scores = interaction_scores(users, items, torch.stack([owners, chosen]))
            prior = prior_log_odds(data.popularity).index_select(0, chosen)
            weights = credence(scores, prior, distribution, params.credence)
        self.held = None if params.e_steps == "epoch" else weights
        metrics = {"ks": ks_distance(sample, distribution).item()} if params.backbone == "mf" else {}
        mean = 1.0 if params.credence == "mean1" else weights.mean().item()
        return Calibration(self.settings, weights, metrics, mean)


def is_e_step(epoch: int, e_steps: int | str | None, epochs: int) -> bool:
    """Whether an E-step comes before ``epoch`` (from 1): ``e_steps`` at equal distances, one an epoch at most, E-A1."""
    if not isinstance(e_steps, int):
        return True
    return (epoch - 1) * e_steps // epochs != (epoch - 2) * e_steps // epochs


def score_distribution(
    params: Params, users: torch.Tensor, items: torch.Tensor, sample: torch.Tensor
) -> ScoreDistribution:
    """F of (3.22): from the initial factors, the trained ones (``prior_var=fitted``), or LightGCN's scores.

    Args:
        params: with loss=bprac.
        users: final embeddings (U, d).
        items: the same, (I, d).
        sample: scores of the model, see :func:`workloads.recommender.credence.sampled_scores`.
    """
    assert params.prior_var is not None
    if params.backbone == "lightgcn":
        return EmpiricalScores(sample)
    if params.prior_var == "fitted":
        return GaussianFactors.fitted(users, items)
    return GaussianFactors(params.dim, params.prior_var)
