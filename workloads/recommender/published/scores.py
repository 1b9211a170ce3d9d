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

BINS, SPREADS = 80, 5.0
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
    found = {}
    for name, law in laws.items():
        x = np.linspace(law.ppf(0.001), law.ppf(0.999), points)
        f, below = law.pdf(x), law.cdf(x)
        found[name] = Densities(*(torch.from_numpy(column) for column in (x, 2 * f * (1 - below), 2 * f * below)))
    return found


def model_densities(model: Path, params: Mapping[str, Any], root: Path) -> Densities:
    """Histograms of an exported model's scores; the false negatives are the test part, looked at here only.

    What lies more than five standard deviations from the mean score is counted in the outermost bins.

    Args:
        model: the folder of an exported model.
        params: what it was trained with.
        root: the data root.
    """
    settings = Params(**params)
    weights = load_file(model / "weights.safetensors")
    users, items = weights["users"], weights["items"]
    data = prepare(
        load_interactions(settings.dataset, root, getattr(settings, "split", "official")),
        settings.split_seed, holdout=False, device=torch.device("cpu"),
    )  # fmt: skip
    sample = sampled_scores(users, items, generator(0, "scores"))
    middle, reach = sample.mean().item(), SPREADS * max(sample.std().item(), 1e-12)
    low, high = middle - reach, middle + reach
    counts = torch.zeros(2, BINS, dtype=torch.float64)
    rows = max(1, _AT_ONCE // data.n_items)
    for first in range(0, data.n_users, rows):
        last = min(first + rows, data.n_users)
        scores = (users[first:last] @ items.T).clamp_(low, high)
        liked, known = (history.mask(first, last, data.n_items) for history in (data.test, data.known))
        for kind, chosen in enumerate((~liked & ~known, liked & ~known)):
            counts[kind] += torch.histc(scores[chosen], BINS, low, high).double()
    width = (high - low) / BINS
    x = low + width * (torch.arange(BINS, dtype=torch.float64) + 0.5)
    true, false = counts / (counts.sum(1, keepdim=True).clamp_min(1) * width)
    return Densities(x, true, false)
