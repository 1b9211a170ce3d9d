"""How well a trained model's credence separates the interactions that were rated 1: table 3.2, figure 3.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from workloads.data import load_interactions
from workloads.data.interactions.truth import untrusted
from workloads.recommender.calibration import score_distribution
from workloads.recommender.credence import credence, interaction_scores, prior_log_odds, sampled_scores
from workloads.recommender.params import Params
from workloads.recommender.quality import roc_auc, roc_curve
from workloads.seeding import generator


@dataclass(frozen=True)
class Trust:
    """``auc`` and the ROC: false and true positive rates, (n,) each."""

    auc: float
    false_positives: torch.Tensor
    true_positives: torch.Tensor


def evaluate_credence(model: Path, params: Mapping[str, Any], root: Path) -> Trust:
    """Evaluate the credence that an exported model gives its training interactions, by ratings unused in training.

    Args:
        model: the folder of an exported model.
        params: its hyperparameters, with loss=bprac.
        root: the data root.

    Raises:
        ValueError: the dataset has no ratings, or all are alike.
    """
    settings = Params(**params)
    assert settings.credence is not None
    weights = load_file(model / "weights.safetensors")
    users = weights["users"]
    items = weights["items"]
    data = load_interactions(
        settings.dataset, root, settings.split, settings.dataset_noise, settings.dataset_min_rating
    )
    trusted = torch.from_numpy(~untrusted(data))
    if trusted.all() or not trusted.any():
        raise ValueError(f"table 3.2 needs ratings of 1 and others, got a single kind in {settings.dataset}")
    pairs = torch.from_numpy(data.train.T.astype("int64"))
    counts = torch.bincount(pairs[1], minlength=len(items))
    sample = sampled_scores(users, items, generator(0, "credence"))
    distribution = score_distribution(settings, users, items, sample)
    given = credence(
        interaction_scores(users, items, pairs), prior_log_odds(counts)[pairs[1]], distribution, settings.credence
    )
    return Trust(roc_auc(given, trusted).item(), *roc_curve(given, trusted))
