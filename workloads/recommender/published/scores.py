"""What is computed from the scores of an exported model: densities of figure 4.2, metrics by the planted truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from workloads.data import load_interactions
from workloads.recommender.credence import sampled_scores
from workloads.recommender.dataset import History, RecommenderData, prepare
from workloads.recommender.evaluation import evaluation, rank_users
from workloads.recommender.params import Params
from workloads.recommender.scorers import Factors
from workloads.seeding import generator

BINS = 80
SPREADS = 5.0
_AT_ONCE = 2**22  # scores in memory at once


class Densities(NamedTuple):
    """Over the scores ``x``, (n,): of ``true`` and of ``false`` negatives, each of integral 1."""

    x: torch.Tensor
    true: torch.Tensor
    false: torch.Tensor


def against_planted_truth(model: Path, params: Mapping[str, Any], root: Path) -> Mapping[str, float]:
    """The ranking metrics of an exported model with the planted truth as the relevant items.

    Args:
        model: the folder of an exported model.
        params: its hyperparameters.
        root: the data root.

    Raises:
        ValueError: the truth of the dataset is not known.
    """
    data = _prepared(Params(**params), root)
    if data.truth is None:
        raise ValueError(f"dataset {params['dataset']!r} has no planted truth")
    weights = load_file(model / "weights.safetensors")
    liked = History.of(np.argwhere(data.truth), data.n_users, torch.device("cpu"))
    values, lists = rank_users([Factors(weights["users"], weights["items"])], liked, data.seen)
    return evaluation(values[0], lists[0], liked, data.popularity).metrics


def _prepared(settings: Params, root: Path) -> RecommenderData:
    """The data that a final model is trained on."""
    data = load_interactions(
        settings.dataset, root, settings.split, settings.dataset_noise, settings.dataset_min_rating
    )
    return prepare(data, settings.split_seed, holdout=False, device=torch.device("cpu"))


def model_densities(model: Path, params: Mapping[str, Any], root: Path) -> Densities:
    """Histograms of an exported model's scores; the false negatives are the test part, which training never sees.

    Scores more than five standard deviations from the mean are counted in the outermost bins.

    Args:
        model: the folder of an exported model.
        params: its hyperparameters.
        root: the data root.
    """
    settings = Params(**params)
    weights = load_file(model / "weights.safetensors")
    users = weights["users"]
    items = weights["items"]
    data = _prepared(settings, root)
    sample = sampled_scores(users, items, generator(0, "scores"))
    middle = sample.mean().item()
    reach = SPREADS * max(sample.std().item(), 1e-12)
    low = middle - reach
    high = middle + reach
    counts = torch.zeros(2, BINS, dtype=torch.float64)
    rows = max(1, _AT_ONCE // data.n_items)
    for first in range(0, data.n_users, rows):
        last = min(first + rows, data.n_users)
        scores = (users[first:last] @ items.T).clamp_(low, high)
        liked, seen = (history.mask(first, last, data.n_items) for history in (data.test, data.seen))
        for kind, chosen in enumerate((~liked & ~seen, liked & ~seen)):
            counts[kind] += torch.histc(scores[chosen], BINS, low, high).double()
    width = (high - low) / BINS
    x = low + width * (torch.arange(BINS, dtype=torch.float64) + 0.5)
    true, false = counts / (counts.sum(1, keepdim=True).clamp_min(1) * width)
    return Densities(x, true, false)
