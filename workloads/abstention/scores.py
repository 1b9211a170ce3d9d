"""Scores by which a model answers or abstains, from the scores of each query's candidates. NumPy only: exported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SOFTMAX, TEMPERATURE, MARGIN, BM25 = "softmax", "temperature", "margin", "bm25"
"""``softmax``: the mass of the first k under the softmax of the scores; ``temperature``: the same at the temperature
fitted on validation; ``margin``: the first score less the second; ``bm25``: the same of BM25's scores."""

Rows = NDArray[np.floating[Any]]


def mass(scores: Rows, k: int, temperature: float) -> NDArray[np.float64]:
    """The softmax's mass of the k highest of each row, (Q, C) to (Q,); -inf is padding, and a row of it has 0."""
    ordered = -np.sort(-scores.astype(np.float64), 1) / temperature
    best = np.where(np.isfinite(ordered[:, :1]), ordered[:, :1], 0)
    raised = np.exp(ordered - best)
    total = raised.sum(1)
    share: NDArray[np.float64] = raised[:, :k].sum(1) / np.where(total > 0, total, 1)
    return share


def margin(scores: Rows) -> NDArray[np.float64]:
    """The highest of each row less the second highest, (Q, C) to (Q,); 0 with fewer than two."""
    if scores.shape[1] < 2:
        return np.zeros(len(scores))
    second, first = np.sort(np.partition(scores.astype(np.float64), -2, 1)[:, -2:], 1).T
    there = np.isfinite(second)
    return np.where(there, first, 0) - np.where(there, second, 0)


def padded(values: Rows, lists: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """The values (n,) of ``count`` lists as rows, in order, padded with -inf; ``lists`` (n,) is the list of each."""
    sizes = np.bincount(lists, minlength=count)
    order = np.argsort(lists, kind="stable")
    rows = np.full((count, int(sizes.max(initial=0))), -np.inf)
    rows[lists[order], np.arange(len(lists)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = values[order]
    return rows


def by(name: str, scores: Rows, k: int, temperature: float) -> NDArray[np.float64]:
    """The score ``name`` of each row of candidates' scores, (Q, C) to (Q,); for ``bm25`` these are BM25's."""
    return margin(scores) if name in (MARGIN, BM25) else mass(scores, k, temperature)
