"""Rank all candidates of users in one compiled loop on a CPU. It gives what ``workloads/metrics/ranking.py`` gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.compilation import Int, Real, compiled, inlined

Indptr = NDArray[np.int64]


class ItemLists(NamedTuple):
    """Item lists of users in rows: ``items[indptr[u]:indptr[u + 1]]`` of row u, int64, each item once."""

    indptr: Indptr
    items: NDArray[np.int64]


class RankedRows(NamedTuple):
    """What :func:`rank_rows` writes, in the first rows of larger arrays or alone."""

    items: NDArray[np.int64]
    """(U, k): the candidates of highest score, best first, ties by lower item number; -1 where they run out."""
    scores: NDArray[np.float32]
    """(U, k): their scores; -inf where they run out. The first is NaN if a candidate's score is."""
    hits: NDArray[np.bool_]
    """(U, k): whether they are relevant."""
    n: NDArray[np.int64]
    """(U,): number of relevant candidates."""
    wins: NDArray[np.int64]
    """(U,): pairs of a relevant and another candidate in the right order, less those in the wrong order."""
    pairs: NDArray[np.int64]
    """(U,): number of such pairs."""

    @classmethod
    def empty(cls, n_users: int, k: int) -> RankedRows:
        return cls(
            np.full((n_users, k), -1),
            np.full((n_users, k), -np.inf, np.float32),
            np.zeros((n_users, k), np.bool_),
            *np.zeros((3, n_users), np.int64),
        )


@compiled
def rank_rows(
    scores: NDArray[np.float32], first: Int, excluded: ItemLists, relevant: ItemLists, out: RankedRows
) -> None:
    """Rank the candidates of users ``first`` to ``first + U`` and compare the relevant ones with the others.

    Args:
        scores: (U, I); -inf is no candidate.
        first: row of the first user in ``excluded`` and ``relevant``.
        excluded: items that are no candidates.
        relevant: relevant items.
        out: written; as :meth:`RankedRows.empty` before, its k at most I.
    """
    n_items = scores.shape[1]
    row = np.empty(n_items, np.float32)
    is_excluded = np.zeros(n_items, np.bool_)
    for user in range(scores.shape[0]):
        for item in range(n_items):
            row[item] = scores[user, item]
        for position in range(excluded.indptr[first + user], excluded.indptr[first + user + 1]):
            row[excluded.items[position]] = -np.inf
            is_excluded[excluded.items[position]] = True
        length = _best(row, out.items[user], out.scores[user])
        n_excluded = 0
        n_unordered = 0
        for item in range(n_items):
            n_excluded += row[item] == -np.inf
            n_unordered += np.isnan(row[item])
        if n_unordered:
            out.scores[user, 0] = np.nan
        n = 0
        balance = 0
        for position in range(relevant.indptr[first + user], relevant.indptr[first + user + 1]):
            item = relevant.items[position]
            if is_excluded[item]:
                continue
            n += 1
            balance += _balance(row, row[item])
            for rank in range(length):
                if out.items[user, rank] == item:
                    out.hits[user, rank] = True
        for position in range(excluded.indptr[first + user], excluded.indptr[first + user + 1]):
            is_excluded[excluded.items[position]] = False
        out.n[user] = n
        out.wins[user] = balance - n * n_excluded
        out.pairs[user] = n * (n_items - n_excluded - n)


@inlined
def _best(row: NDArray[np.float32], items: NDArray[np.int64], scores: NDArray[np.float32]) -> Int:
    """Write the k highest scores of a row to ``scores``, their positions to ``items``. Returns their number."""
    k = len(items)
    length = 0
    lowest = np.float32(-np.inf)
    for item in range(len(row)):
        if row[item] > lowest:
            rank = min(length, k - 1)
            while rank > 0 and scores[rank - 1] < row[item]:
                scores[rank] = scores[rank - 1]
                items[rank] = items[rank - 1]
                rank -= 1
            scores[rank] = row[item]
            items[rank] = item
            length = min(length + 1, k)
            if length == k:
                lowest = scores[k - 1]
    return length


@inlined
def _balance(row: NDArray[np.float32], own: Real) -> Int:
    """Number of lower scores in a row, less that of higher ones."""
    lower = np.int32(0)
    higher = np.int32(0)
    for item in range(len(row)):
        lower += row[item] < own
        higher += row[item] > own
    return lower - higher
