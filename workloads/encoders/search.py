"""Exact search: the k rows of an index that have the highest inner products with a query."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_SCORES = {"cpu": 2**22, "cuda": 2**28}
"""Scores that are held at once."""


def exact_topk(
    queries: torch.Tensor, index: torch.Tensor | Iterable[torch.Tensor], k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best rows of the index for each query: best first, ties by row, so that the order is always the same.

    Normalise both sides (:func:`~workloads.encoders.pooling.normalised`) to search by cosine.

    Args:
        queries: (Q, d).
        index: (N, d), or blocks of it in their order, of which one at a time is moved to the queries' device: an
            index may be larger than that device's memory.
        k: at least 1.

    Returns:
        Scores (Q, min(k, N)) and rows of the index (Q, min(k, N)) int64, on the device of the queries.

    Raises:
        ValueError: k is below 1, or the vectors differ in their dimension.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    device, dim = queries.device, queries.shape[1]
    scores = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=device)
    first = 0
    for block in _blocks(queries, index):
        if block.shape[1] != dim:
            raise ValueError(f"the index has {block.shape[1]} dimensions, the queries have {dim}")
        found, places = _best(queries @ block.to(device, non_blocking=True).T, k)
        # Of equal scores those before in the index stand before here as well: ties by place are ties by row.
        scores, rows = torch.cat([scores, found], 1), torch.cat([rows, places + first], 1)
        scores, places = _best(scores, k)
        rows = rows.gather(1, places)
        first += len(block)
    return scores, rows


def _blocks(queries: torch.Tensor, index: torch.Tensor | Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    if not isinstance(index, torch.Tensor):
        return index
    at_once = _SCORES.get(queries.device.type, _SCORES["cpu"]) // max(1, len(queries))
    return torch.split(index, max(1024, at_once))


def _best(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest of each row of (Q, N) and their places, ties by place."""
    k = min(k, scores.shape[1])
    values, places = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if values.shape[1] > k:
        # topk takes any of equal values: where it had the choice at the cut, it is made again.
        tied = (values[:, k - 1] == values[:, k]).nonzero().squeeze(1)
        if len(tied):
            places[tied, :k] = scores[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    places = places[:, :k].sort(dim=1).values
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
