"""Evaluation: rank all candidates of all users, for one or several models; estimate the AUC alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import torch

from workloads.contract import Direction, Evaluation
from workloads.distributed import reduce_sum
from workloads.metrics.exposure import coverage, gini, novelty, popularity
from workloads.metrics.ranking import AT_K, auc, looked_up, metric_names, of_lists, ranked, sampled_auc
from workloads.recommender.cutoffs import CUTOFFS
from workloads.recommender.dataset import History
from workloads.recommender.scorers import Scorer
from workloads.sampling.negatives import Unobserved, random_bits, uniform
from workloads.sampling.sampler import scores as scores_of
from workloads.seeding import derive

DIRECTIONS: Mapping[str, Direction] = {
    **{f"{name}_at_*": "max" for name in (*AT_K, "auc")}, "auc": "max",
    "coverage_at_*": "max", "gini_at_*": "min", "novelty_at_*": "max", "popularity_at_*": "min",
}  # fmt: skip
"""Better direction of each metric, at any cutoff."""

_SCORES = {"cpu": 2**18, "cuda": 2**25}  # ranked at once: on a CPU as many as fit its cache
_AT_ONCE = 2**16  # pairs drawn at once
_NOTHING = "no user has an item in this part of the data, so nothing can be measured on it"

COMPARED = 2**30
"""Number of comparisons up to which the AUC is exact: about a second of a CPU core."""

SAMPLED_FROM = 2**16
"""Number of items from which each user's AUC is estimated: it would cost more than the ranking."""

AUC_ITEMS = 2**12
"""Number of items drawn for that, the same for all users and models. The standard error of a mean is below 0.008."""

COMPILED_FROM = 2**26
"""Number of scores in all evaluations from which a loop is compiled on a CPU: 40 times all users of MovieLens-100K."""

INSERTED = 100
"""Length of a list up to which the compiled loop ranks: it inserts each item in order, which takes longer than sorting
for long lists."""

DRAWN = 2**20
"""Number of sampled pairs from which a larger AUC is estimated; its standard error is below 0.0005."""


def rank_users(
    models: Sequence[Scorer],
    relevant: History,
    excluded: History,
    rank: int = 0,
    world_size: int = 1,
    evaluations: int = 1,
    cutoffs: Sequence[int] = CUTOFFS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranking metrics and lists of each user under K models; users are divided over ranks, others' rows are 0.

    Args:
        models: of the same users and items.
        relevant: the relevant items.
        excluded: items excluded from the candidates.
        evaluations: expected number of calls in this process. It decides whether a compiled loop pays on a CPU, which
            gives the same values.
        cutoffs: the k of the metrics at k, ascending.

    Raises:
        ValueError: there is no user.

    Returns:
        Metrics (K, U, metrics), float32, in the order of ``metric_names(cutoffs)``, and lists (K, U, k), int64, of
        items from 1 with 0 where candidates run out. Above :data:`SAMPLED_FROM` items the metric ``auc`` compares with
        :data:`AUC_ITEMS` drawn items in the place of all. All metrics of a user with a score that is NaN are NaN.
    """
    n_users, n_items = models[0].shape
    if not n_users:
        raise ValueError(_NOTHING)
    device = relevant.items.device
    names = metric_names(cutoffs)
    length = cutoffs[-1]
    values = torch.zeros(len(models), n_users, len(names), device=device)
    lists = torch.zeros(len(models), n_users, length, dtype=torch.int64, device=device)
    rows = min(n_users, _rows(device, n_items))
    parts = [slice(first, min(first + rows, n_users)) for first in range(0, n_users, rows)[rank::world_size]]
    count = len(models) * sum(part.stop - part.start for part in parts)
    # Allocated at once: small tensors that outlive the scores of a block would fragment the memory between them.
    hits = torch.empty(count, length, dtype=torch.bool, device=device)
    listed = torch.empty(count, length, device=device)
    n = torch.empty(count, dtype=torch.int64, device=device)
    aucs = torch.empty(count, device=device)
    blocks: list[tuple[tuple[slice, slice], slice]] = []
    filled = 0
    loop = _compiled_blocks if _compilation_pays(device, count, n_items, evaluations, length) else _blocks
    for block, items, *measured in loop(models, relevant, excluded, parts, length):
        span = slice(filled, filled + len(items))
        filled += len(items)
        hits[span], listed[span], n[span], aucs[span] = measured
        lists[block] = 1 + items.view(lists[block].shape)
        blocks.append((block, span))
    if blocks:  # the metrics of lists for all blocks at once: they are many small operations
        metrics = of_lists(hits, listed, n, aucs, cutoffs)
        columns = torch.stack([metrics[name] for name in names], dim=1)
        for block, span in blocks:
            values[block] = columns[span].view(values[block].shape)
    return values, lists


_Block: TypeAlias = tuple[tuple[slice, slice], torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Models and users of a block; listed items, hits and scores (n, k), number of relevant candidates and AUC (n,)."""


def _blocks(
    models: Sequence[Scorer], relevant: History, excluded: History, parts: Sequence[slice], length: int
) -> Iterator[_Block]:
    n_items = models[0].shape[1]
    device = relevant.items.device
    # Packing does not change a model's score products; models share a block only where all users of one do not fill it.
    per_block = max(1, _rows(device, n_items) // (parts[0].stop - parts[0].start)) if parts else 1
    drawn = _drawn_items(n_items, device) if n_items > SAMPLED_FROM else None
    for part in parts:
        wanted, masked = (history.mask(part.start, part.stop, n_items) for history in (relevant, excluded))
        for k in range(0, len(models), per_block):
            scores = [model.scores(part.start, part.stop) for model in models[k : k + per_block]]
            candidates, items = ranked(_stack(scores), _stack([masked] * len(scores)), length)
            targets = _stack([wanted & ~masked] * len(scores))
            area = auc(candidates, targets) if drawn is None else sampled_auc(candidates, targets, drawn)
            yield (slice(k, k + len(scores)), part), items, *looked_up(candidates, items, targets), area


def _compiled_blocks(
    models: Sequence[Scorer], relevant: History, excluded: History, parts: Sequence[slice], length: int
) -> Iterator[_Block]:
    from workloads.recommender.compiled_ranking import ItemLists, RankedRows, rank_rows

    wanted, masked = (ItemLists(history.indptr, history.items.numpy()) for history in (relevant, excluded))
    for part in parts:
        for k, model in enumerate(models):
            ranking = RankedRows.empty(part.stop - part.start, length)
            scores = model.scores(part.start, part.stop).float().contiguous().numpy()
            rank_rows(scores, part.start, masked, wanted, ranking)
            items, listed, hits, n, wins, pairs = map(torch.from_numpy, ranking)
            yield (slice(k, k + 1), part), items, hits, listed, n, 0.5 + 0.5 * wins.float() / pairs


def _compilation_pays(device: torch.device, rows: int, n_items: int, evaluations: int, length: int) -> bool:
    """Whether the compiled loop saves more time than its compilation, or loading it, takes."""
    if device.type != "cpu" or length > INSERTED or not length <= n_items <= SAMPLED_FROM:
        return False
    return rows * n_items * evaluations >= COMPILED_FROM and find_spec("numba") is not None


def evaluation(
    values: torch.Tensor,
    lists: torch.Tensor,
    relevant: History,
    counts: torch.Tensor,
    rank: int = 0,
    cutoffs: Sequence[int] = CUTOFFS,
) -> Evaluation:
    """Average over the users with a relevant item; on rank 0 also return their values as units.

    All metrics are NaN if a user has a score that is NaN: such a model is not measured on the other users alone.

    Args:
        values: (U, metrics), one model's of :func:`rank_users`.
        lists: (U, k), the same.
        relevant: the relevant items.
        counts: training interactions of each item, (I,).
        rank: of this worker.
        cutoffs: those of :func:`rank_users`.

    Raises:
        ValueError: no user has a relevant item.
    """
    ids = np.flatnonzero(relevant.counts)
    if not len(ids):
        raise ValueError(_NOTHING)
    units = dict(zip(metric_names(cutoffs), values.cpu().numpy()[ids].T))
    of_all: dict[str, float] = {}
    for k in cutoffs:
        shown = lists[torch.from_numpy(ids).to(lists.device), :k] - 1
        units[f"novelty_at_{k}"] = novelty(shown, counts, relevant.n_users).cpu().numpy()
        units[f"popularity_at_{k}"] = popularity(shown, counts).cpu().numpy()
        of_all |= {f"coverage_at_{k}": coverage(shown, len(counts)), f"gini_at_{k}": gini(shown, len(counts))}
    metrics = {name: _mean(column) for name, column in units.items()} | of_all
    if np.isnan(units[f"precision_at_{cutoffs[0]}"]).any():  # an AUC may have no pair to compare
        metrics = dict.fromkeys(metrics, math.nan)
    numbers = ids if relevant.numbers is None else relevant.numbers[ids]
    return Evaluation(metrics, {"id": numbers, **units} if rank == 0 else {})


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
    """The metric ``auc`` of :func:`evaluation` without the cost of the others; a collective.

    Exact for up to :data:`COMPARED` pairs. Otherwise the share of :data:`DRAWN` sampled pairs in the right order, ties
    one half: each user equally often, with a relevant item and another candidate drawn uniformly.

    Args:
        users, items: final embeddings (U, d) and (I, d).
        relevant: the relevant items.
        excluded: items excluded from the candidates.
        unknown: items in neither of the two.
        key: key of the random draws.
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
    sums = torch.zeros(2, dtype=torch.float64, device=users.device)
    table = torch.cat([users, items])
    nodes = len(users)
    draws = torch.arange(DRAWN * rank // world_size, DRAWN * (rank + 1) // world_size, device=users.device)
    indptr = torch.from_numpy(relevant.indptr).to(users.device)
    for counters in torch.split(draws, _AT_ONCE):
        chosen = able[counters * len(able) // DRAWN]
        first = indptr[chosen]
        last = indptr[chosen + 1]
        wanted = relevant.items[first + ((random_bits(key, counters) * (last - first)) >> 32)]
        other = uniform(unknown, chosen, counters + DRAWN, key)
        x, y = scores_of(table, chosen, torch.stack([wanted, other]) + nodes)
        sums += torch.stack([(x > y).sum() + (x == y).sum() / 2, sums.new_tensor(len(counters))])
    right, count = reduce_sum(sums).tolist()
    return float(right / count)


def _aucs(
    users: torch.Tensor, items: torch.Tensor, relevant: History, excluded: History, rank: int, world_size: int
) -> torch.Tensor:
    """The AUC of each user, (U,), as in :func:`rank_users`."""
    n_users = len(users)
    n_items = len(items)
    values = torch.zeros(n_users, device=users.device)
    rows = _rows(users.device, n_items)
    for first in range(0, n_users, rows)[rank::world_size]:
        last = min(first + rows, n_users)
        wanted, masked = (history.mask(first, last, n_items) for history in (relevant, excluded))
        scores = (users[first:last] @ items.T).masked_fill_(masked, -torch.inf)
        values[first:last] = auc(scores, wanted & ~masked)
    return values


def _drawn_items(n_items: int, device: torch.device) -> torch.Tensor:
    """The items that each user's relevant ones are compared with, (m,), ascending; the same for all models."""
    draws = random_bits(derive(0, "auc"), torch.arange(AUC_ITEMS, device=device))
    items: torch.Tensor = ((draws * n_items) >> 32).unique()  # type: ignore[no-untyped-call]
    return items


def _rows(device: torch.device, n_items: int) -> int:
    """How many users are ranked at once."""
    return max(1, _SCORES.get(device.type, _SCORES["cpu"]) // n_items)


def _stack(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))


def _mean(column: np.ndarray[Any, Any]) -> float:
    """Mean over the users with a defined value (an AUC needs a pair to compare); 0.5 if there is none."""
    defined = column[~np.isnan(column)]
    return float(defined.mean(dtype=np.float64)) if len(defined) else 0.5
