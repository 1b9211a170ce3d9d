"""Rank all candidates of users in one compiled loop on a CPU. It gives what ``workloads/metrics/ranking.py`` gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.compilation import Int, Real, compiled, inlined

Indptr = NDArray[np.int64]


class Lists(NamedTuple):
    """Item lists of users in rows: ``items[indptr[u]:indptr[u + 1]]`` of row u, int64, each item once."""

    indptr: Indptr
    items: NDArray[np.int64]


class Ranked(NamedTuple):
    """What :func:`rank_rows` writes, in the first rows of larger arrays or alone."""

    items: NDArray[np.int64]
    """(U, k): the candidates of highest score, best first, ties by lower item number; -1 where they run out."""
    scores: NDArray[np.float32]
    """(U, k): their scores; -inf where they run out."""
    hits: NDArray[np.bool_]
    """(U, k): whether they are relevant."""
    n: NDArray[np.int64]
    """(U,): number of relevant candidates."""
    wins: NDArray[np.int64]
    """(U,): pairs of a relevant and another candidate in the right order, less those in the wrong order."""
    pairs: NDArray[np.int64]
    """(U,): number of such pairs."""

    @classmethod
    def empty(cls, n_users: int, k: int) -> Ranked:
        return cls(
            np.full((n_users, k), -1),
            np.full((n_users, k), -np.inf, np.float32),
            np.zeros((n_users, k), np.bool_),
            *np.zeros((3, n_users), np.int64),
        )


@compiled
def rank_rows(scores: NDArray[np.float32], first: Int, excluded: Lists, relevant: Lists, out: Ranked) -> None:
    """Rank the candidates of users ``first`` to ``first + U`` and compare the relevant ones with the others.

    Args:
        scores: (U, I); -inf is no candidate.
        first: row of the first user in ``excluded`` and ``relevant``.
        excluded: items that are no candidates.
        relevant: relevant items.
        out: written; as :meth:`Ranked.empty` before, its k at most I.
    """
    n_items = scores.shape[1]
    row = np.empty(n_items, np.float32)
    for user in range(scores.shape[0]):
        for item in range(n_items):
            row[item] = scores[user, item]
        for position in range(excluded.indptr[first + user], excluded.indptr[first + user + 1]):
            row[excluded.items[position]] = -np.inf
        length = _best(row, out.items[user], out.scores[user])
        n_excluded = 0
        for item in range(n_items):
            n_excluded += row[item] == -np.inf
        n = 0
        balance = 0
        for position in range(relevant.indptr[first + user], relevant.indptr[first + user + 1]):
            own = row[relevant.items[position]]
            if own == -np.inf:
                continue
            n += 1
            balance += _balance(row, own)
            for place in range(length):
                if out.items[user, place] == relevant.items[position]:
                    out.hits[user, place] = True
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
            place = min(length, k - 1)
            while place > 0 and scores[place - 1] < row[item]:
                scores[place] = scores[place - 1]
                items[place] = items[place - 1]
                place -= 1
            scores[place] = row[item]
            items[place] = item
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
