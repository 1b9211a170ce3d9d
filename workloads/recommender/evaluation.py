"""Ranking of every candidate of every user, for one model or for several side by side; an AUC by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from workloads.contract import Evaluation
from workloads.distributed import reduce_sum
from workloads.metrics.ranking import auc, metric_names, per_user
from workloads.recommender.dataset import History
from workloads.sampling.negatives import Unobserved, random_bits, uniform
from workloads.sampling.sampler import scores as scores_of

CUTOFFS = (5, 10, 20)
"""The k of every metric at k."""

_SCORES = {"cpu": 2**18, "cuda": 2**25}  # ranked at once: on a CPU what its cache holds
_AT_ONCE = 2**16  # pairs drawn at once
_NOTHING = "no user has an item in this part of the data, so nothing can be measured on it"

COMPARED = 2**30
"""Comparisons of an item to find with another, up to which an AUC is that of all: about a second of a CPU core."""

DRAWN = 2**20
"""Pairs of an item to find and another that a larger AUC is estimated from: its standard error is below 0.0005."""


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
    at_once = _rows(device, n_items)
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
        raise ValueError(_NOTHING)
    units = dict(zip(metric_names(CUTOFFS), values.cpu().numpy()[ids].T))
    metrics = {name: _mean(column) for name, column in units.items()}
    return Evaluation(metrics, {"id": ids, **units} if rank == 0 else {})


def mean_auc(
    users: torch.Tensor,
    items: torch.Tensor,
    relevant: History,
    excluded: History,
    unknown: Unobserved,
    key: int,
    rank: int = 0,
    world_size: int = 1,
) -> float:
    """The metric ``auc`` of :func:`evaluation` by itself, without the others' cost; a collective.

    That of all pairs, and equal to it, where these are at most :data:`COMPARED`. Else the share of :data:`DRAWN` pairs
    in the right order, ties one half: users in equal numbers, an item to find and another candidate uniformly.

    Args:
        users, items: final embeddings (U, d) and (I, d).
        relevant: the items to find.
        excluded: the items that are no candidates.
        unknown: the items that are in neither.
        key: of the draws.
    """
    some = torch.from_numpy(relevant.counts > 0).to(users.device)
    if not some.any():
        raise ValueError(_NOTHING)
    if len(relevant.items) * len(items) <= COMPARED:
        values = reduce_sum(_aucs(users, items, relevant, excluded, rank, world_size))
        return _mean(values[some].cpu().numpy())
    able = (some & (unknown.counts > 0)).nonzero().squeeze(1)
    if not len(able):
        return 0.5
    found = torch.zeros(2, dtype=torch.float64, device=users.device)
    table, nodes = torch.cat([users, items]), len(users)
    draws = torch.arange(DRAWN * rank // world_size, DRAWN * (rank + 1) // world_size, device=users.device)
    indptr = torch.from_numpy(relevant.indptr).to(users.device)
    for counters in torch.split(draws, _AT_ONCE):
        chosen = able[counters * len(able) // DRAWN]
        first, last = indptr[chosen], indptr[chosen + 1]
        wanted = relevant.items[first + ((random_bits(key, counters) * (last - first)) >> 32)]
        other = uniform(unknown, chosen, counters + DRAWN, key)
        x, y = scores_of(table, chosen, torch.stack([wanted, other]) + nodes)
        found += torch.stack([(x > y).sum() + (x == y).sum() / 2, found.new_tensor(len(counters))])
    right, count = reduce_sum(found).tolist()
    return float(right / count)


def _aucs(
    users: torch.Tensor, items: torch.Tensor, relevant: History, excluded: History, rank: int, world_size: int
) -> torch.Tensor:
    """The AUC of each user, (U,), as in :func:`rank_users`."""
    n_users, n_items = len(users), len(items)
    values, rows = torch.zeros(n_users, device=users.device), _rows(users.device, n_items)
    for first in range(0, n_users, rows)[rank::world_size]:
        last = min(first + rows, n_users)
        wanted, known = (history.mask(first, last, n_items) for history in (relevant, excluded))
        scores = (users[first:last] @ items.T).masked_fill_(known, -torch.inf)
        values[first:last] = auc(scores, wanted & ~known)
    return values


def _rows(device: torch.device, n_items: int) -> int:
    """How many users are ranked at once."""
    return max(1, _SCORES.get(device.type, _SCORES["cpu"]) // n_items)


def _stack(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))


def _mean(column: np.ndarray[Any, Any]) -> float:
    """Over the users it is defined for: an AUC needs a pair to compare. One half, which knows nothing, for none."""
    defined = column[~np.isnan(column)]
    return float(defined.mean(dtype=np.float64)) if len(defined) else 0.5
