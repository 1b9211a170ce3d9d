"""Exact search for the k rows of an index with the highest inner products with a query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

_SCORES = {"cpu": 2**24, "cuda": 2**26}
"""Number of scores in memory at once."""


def exact_topk(
    queries: torch.Tensor, index: torch.Tensor | Iterable[torch.Tensor], k: int, share: tuple[int, int] = (0, 1)
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best rows of the index for each query, best first. Ties are ordered by row, so the result is deterministic.

    Normalise both sides (:func:`~workloads.encoders.pooling.normalised`) to search by cosine.

    Args:
        queries: (Q, d).
        index: (N, d), or an iterable of its blocks in order. One block at a time is moved to the queries' device, so
            the index may be larger than the device's memory.
        k: at least 1.
        share: (number, of): search every ``of``-th block of scores, from block ``number``; used by
            :func:`~workloads.encoders.sharded.sharded_topk`.

    Returns:
        Scores (Q, min(k, N)) and rows of the index (Q, min(k, N)) int64, on the device of the queries. N: of the share.

    Raises:
        ValueError: k is below 1, or the dimensions differ.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    scores = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    blocks = [index] if isinstance(index, torch.Tensor) else index
    for first, block in _scored(queries, blocks, share):
        best_scores, places = best(block, k)
        places += first
        if scores.shape[1]:
            # Earlier rows come first here too, so ties by position are ties by row.
            scores = torch.cat([scores, best_scores], 1)
            rows = torch.cat([rows, places], 1)
            best_scores, order = best(scores, k)
            places = rows.gather(1, order)
        scores, rows = best_scores, places
    return scores, rows


def _scored(
    queries: torch.Tensor, index: Iterable[torch.Tensor], share: tuple[int, int]
) -> Iterator[tuple[int, torch.Tensor]]:
    """The first row and the scores of parts (Q, n) of the index, which reuse one buffer."""
    at_once = max(1024, _SCORES.get(queries.device.type, _SCORES["cpu"]) // max(1, len(queries)))
    held = queries.new_empty(len(queries), at_once)
    own, shares = share
    first = count = number = 0
    for block in index:
        if block.shape[1] != queries.shape[1]:
            raise ValueError(f"the index has {block.shape[1]} dimensions, the queries have {queries.shape[1]}")
        start = 0
        while start < len(block):
            part = block[start : start + at_once - count]
            if number % shares == own:
                moved = part.to(queries.device, non_blocking=True)
                torch.mm(queries, moved.T, out=held[:, count : count + len(part)])
            start = start + len(part)
            count = count + len(part)
            if count == at_once:
                if number % shares == own:
                    yield first, held
                first += count
                number += 1
                count = 0
    if count and number % shares == own:
        yield first, held[:, :count]


def best(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest values of each row of (Q, N) and their positions, ties by position."""
    k = min(k, scores.shape[1])
    values, places = _highest(scores, min(k + 1, scores.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(1).nonzero().squeeze(1)
    if len(tied):
        # topk returns equal values in any order, and any of those at the cut: order them again.
        sorted_rows = scores[tied].sort(dim=1, descending=True, stable=True)
        values[tied, :k], places[tied, :k] = sorted_rows.values[:, :k], sorted_rows.indices[:, :k]
    return values[:, :k], places[:, :k]


def _highest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``topk``, in two steps if that is faster: the k groups of columns with the highest maxima contain the k highest.

    Computing maxima is much cheaper than selection. With n columns in groups of g, selection sees n / g + k g values.
    """
    queries, count = scores.shape
    size = math.isqrt(count // k)
    if size < 2:
        return scores.topk(k, dim=1)
    whole = count - count % size
    maxima = scores[:, :whole].view(queries, whole // size, size).amax(2)
    groups = maxima.topk(min(k, maxima.shape[1]), dim=1, sorted=False).indices
    among = (groups.unsqueeze(2) * size + torch.arange(size, device=scores.device)).flatten(1)
    rest = torch.arange(whole, count, device=scores.device).expand(queries, -1)
    among = torch.cat([among, rest], 1)
    values, places = scores.gather(1, among).topk(k, dim=1)
    return values, among.gather(1, places)
