"""What is settled by the model itself before an epoch: α of BCL by its AUC, the credence of interactions (BPRAC)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

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
from workloads.recommender.dataset import History
from workloads.recommender.evaluation import mean_auc
from workloads.recommender.params import Params
from workloads.recommender.quality import wrong_share
from workloads.seeding import derive, generator

if TYPE_CHECKING:
    from workloads.recommender.workload import Recommender


@dataclass(frozen=True, slots=True)
class Calibration:
    """``settings`` of the loss, ``weights`` of the interactions (n,) or None for ones, ``metrics`` to be reported."""

    settings: Mapping[str, Any]
    weights: torch.Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """The weights of some interactions (b,), or None for ones."""
        return None if self.weights is None else self.weights.index_select(0, rows)


@torch.no_grad()
def calibrate(workload: Recommender, epoch: int) -> Calibration:
    """For the epoch's steps, with ``fpr`` where it can be told. A collective; equal on all workers."""
    found, wrong = _calibrated(workload, epoch), workload.data.wrong
    if wrong is None:
        return found
    return replace(found, metrics={**found.metrics, "fpr": wrong_share(wrong, found.weights).item()})


def _calibrated(workload: Recommender, epoch: int) -> Calibration:
    form = workload.settings.get("alpha")
    if form in ("auc", "auc_literal"):
        alpha = alpha_from_auc(_auc(workload, epoch), literal=form == "auc_literal")
        return Calibration({**workload.settings, "alpha": alpha}, metrics={"alpha": alpha})
    if workload.params.loss == "bprac":
        return _credence(workload, epoch)
    return Calibration(workload.settings)


def _auc(workload: Recommender, epoch: int) -> float:
    """Of the validation part; of the training interactions in a refit, which has no other (E-6.21)."""
    data, runtime = workload.data, workload.runtime
    if runtime.holdout:
        relevant, excluded = data.validation, data.train
    else:
        nothing = History(np.empty((0, 2), np.int32), data.n_users, runtime.device)
        relevant, excluded = data.train, nothing
    users, items = workload.embeddings()
    key = derive(runtime.seed, "auc", epoch)
    return mean_auc(users, items, relevant, excluded, data.unknown, key, runtime.rank, runtime.world_size)


def score_distribution(
    params: Params, users: torch.Tensor, items: torch.Tensor, sample: torch.Tensor
) -> ScoreDistribution:
    """F of (3.22): that of the initial factors, of the trained ones (``prior_var=fitted``), or LightGCN's own.

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


def _credence(workload: Recommender, epoch: int) -> Calibration:
    """The E-step of BPRAC, thesis (3.27)."""
    data, params = workload.data, workload.params
    users, items = workload.embeddings()
    sample = sampled_scores(users, items, generator(workload.runtime.seed, "credence", epoch), n=2**13)
    assert params.credence is not None
    distribution = score_distribution(params, users, items, sample)
    owners, chosen = data.pairs[0], data.pairs[1] - data.n_users
    scores = interaction_scores(users, items, torch.stack([owners, chosen]))
    prior = prior_log_odds(data.popularity).index_select(0, chosen)
    weights = credence(scores, prior, distribution, params.credence)
    metrics = {"ks": ks_distance(sample, distribution).item()} if params.backbone == "mf" else {}
    return Calibration(workload.settings, weights, metrics)
