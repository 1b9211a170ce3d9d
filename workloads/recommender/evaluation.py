"""Ranking of every candidate of every user, for one model or for several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from workloads.contract import Evaluation
from workloads.metrics.ranking import metric_names, per_user
from workloads.recommender.prepared import History

CUTOFFS = (5, 10, 20)
"""The k of every metric at k."""

_SCORES = {"cpu": 2**18, "cuda": 2**25}  # ranked at once: on a CPU what its cache holds


def rank_users(
    models: Sequence[tuple[torch.Tensor, torch.Tensor]],
    relevant: History,
    excluded: History,
    rank: int = 0,
    world_size: int = 1,
) -> torch.Tensor:
    """Every metric of each user under each of K models; users are shared out over the ranks, the others' rows are 0.

    Args:
        models: final embeddings of users (U, d) and items (I, d).
        relevant: the items to find.
        excluded: the items that are no candidates.

    Returns:
        (K, U, metrics), float32, the metrics in the order of ``metric_names(CUTOFFS)``.
    """
    n_users, n_items, device = len(models[0][0]), len(models[0][1]), models[0][0].device
    names = metric_names(CUTOFFS)
    values = torch.zeros(len(models), n_users, len(names), device=device)
    at_once = max(1, _SCORES.get(device.type, _SCORES["cpu"]) // n_items)
    rows = min(n_users, at_once)
    # A model's scores are the same product whoever is ranked beside it; models share a block only where all users
    # of one do not fill it.
    beside = at_once // rows
    for first in range(0, n_users, rows)[rank::world_size]:
        last = min(first + rows, n_users)
        wanted, known = (history.mask(first, last, n_items) for history in (relevant, excluded))
        for k in range(0, len(models), beside):
            scores = [users[first:last] @ items.T for users, items in models[k : k + beside]]
            count = len(scores)
            found = per_user(_stack(scores), _stack([wanted] * count), _stack([known] * count), CUTOFFS)
            measured = torch.stack([found[name] for name in names], dim=1)
            values[k : k + beside, first:last] = measured.view(count, last - first, -1)
    return values


def evaluation(values: torch.Tensor, relevant: History, rank: int = 0) -> Evaluation:
    """The values (U, metrics) of the users that have something to be found, as means and, on rank 0, units.

    Raises ValueError where no user has: a mean of nothing would be invented.
    """
    ids = np.flatnonzero(relevant.counts)
    if not len(ids):
        raise ValueError("no user has an item in this part of the data, so nothing can be measured on it")
    units = dict(zip(metric_names(CUTOFFS), values.cpu().numpy()[ids].T))
    metrics = {name: _mean(column) for name, column in units.items()}
    return Evaluation(metrics, {"id": ids, **units} if rank == 0 else {})


def _stack(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))


def _mean(column: np.ndarray[Any, Any]) -> float:
    """Over the users it is defined for: an AUC needs a pair to compare. One half, which knows nothing, for none."""
    defined = column[~np.isnan(column)]
    return float(defined.mean(dtype=np.float64)) if len(defined) else 0.5
