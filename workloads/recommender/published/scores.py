"""Densities of the scores of true and false negatives: by formula (figure 4.3), and of a trained model (figure 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from workloads.data import load_interactions
from workloads.recommender.credence import sampled_scores
from workloads.recommender.dataset import prepare
from workloads.recommender.params import Params
from workloads.seeding import generator

BINS = 80
SPREADS = 5.0
_AT_ONCE = 2**22  # scores in memory at once


class Densities(NamedTuple):
    """Over the scores ``x``, (n,): of ``true`` and of ``false`` negatives, each of integral 1."""

    x: torch.Tensor
    true: torch.Tensor
    false: torch.Tensor


def theoretical_densities(points: int = 200) -> dict[str, Densities]:
    """g = 2f(1 - F) and h = 2fF, thesis (4.7) and (4.8), by the distribution of the unlabelled scores."""
    import numpy as np
    from scipy import stats

    laws = {"normal(0, 1)": stats.norm(), "Student t(3)": stats.t(3), "gamma(2, 1)": stats.gamma(2)}
    densities = {}
    for name, law in laws.items():
        x = np.linspace(law.ppf(0.001), law.ppf(0.999), points)
        f = law.pdf(x)
        below = law.cdf(x)
        densities[name] = Densities(*(torch.from_numpy(column) for column in (x, 2 * f * (1 - below), 2 * f * below)))
    return densities


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
    data = prepare(
        load_interactions(settings.dataset, root, getattr(settings, "split", "official")),
        settings.split_seed, holdout=False, device=torch.device("cpu"),
    )  # fmt: skip
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
