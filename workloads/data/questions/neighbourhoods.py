"""The triples around the topic of a question, its candidates, with the paths to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.data.questions.types import GraphQuestions


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Triples around each of L different (topic, hops), nearest first, then random ones.

    List l has the rows ``indptr[l]`` to ``indptr[l + 1]``: ``triples`` (n,) numbers; ``steps`` (n,) from the topic to
    the far end of the triple, 0 for a random one; ``forward`` (n,) whether the step is from subject to object; ``via``
    (n, H - 1) the relations before it on the path, as ``2 * relation + forward``, -1 for none. ``list_of`` (Q,) is the
    list of each question.
    """

    list_of: NDArray[np.int64]
    indptr: NDArray[np.int64]
    triples: NDArray[np.int64]
    steps: NDArray[np.int64]
    forward: NDArray[np.bool_]
    via: NDArray[np.int64]


def neighbourhoods(data: GraphQuestions, fill: int, seed: int) -> Neighbourhoods:
    """All triples within ``hops`` steps of the topic in either direction, filled up to ``fill`` with random ones.

    All are included, without a limit. Random ones are from the same graph, not around the topic; the draw depends only
    on seed and list. Of several shortest paths to a triple the first in the graph's order counts.
    """
    keys, list_of = np.unique(np.stack([data.topic, data.hops], 1), axis=0, return_inverse=True)
    walker = _Walker(data)
    neighbours = []
    for number, (topic, hops) in enumerate(keys.tolist()):
        around = walker.around(topic, hops)
        missing = fill - len(around.triples)
        if missing > 0:
            bits = np.random.Generator(np.random.PCG64([seed, number]))
            around = _joined([around, _elsewhere(data, around, missing, bits)])
        neighbours.append(around)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(one.triples) for one in neighbours])])
    return Neighbourhoods(list_of.reshape(-1), indptr, *_joined(neighbours))


class _Rows(NamedTuple):
    """Columns of :class:`Neighbourhoods`."""

    triples: NDArray[np.int64]
    steps: NDArray[np.int64]
    forward: NDArray[np.bool_]
    via: NDArray[np.int64]


class _Walker:
    """Breadth-first search from an entity, one level at a time."""

    def __init__(self, data: GraphQuestions) -> None:
        self.subject, self.relation, self.object = data.triples.astype(np.int64).T
        self.longest = int(data.hops.max())
        loops = self.subject == self.object
        ends = np.concatenate([self.subject, self.object[~loops]])
        numbers = np.concatenate([np.arange(len(self.subject)), np.flatnonzero(~loops)])
        order = np.lexsort((numbers, ends))
        self.incident = numbers[order]
        counts = np.bincount(ends, minlength=len(data.entities))
        self.starts = np.cumsum(counts) - counts
        self.counts = counts

    def around(self, topic: int, hops: int) -> _Rows:
        """The triples within ``hops`` steps."""
        crossed = np.zeros(len(self.subject), np.bool_)
        seen = np.zeros(len(self.starts), np.bool_)
        seen[topic] = True
        front = np.array([topic])
        ways = np.full((1, self.longest), -1, np.int64)
        parts = []
        for step in range(1, hops + 1):
            counts = self.counts[front]
            came = np.repeat(np.arange(len(front)), counts)
            within = np.arange(len(came)) - np.repeat(np.cumsum(counts) - counts, counts)
            triples = self.incident[self.starts[front][came] + within]
            first = np.sort(np.unique(triples, return_index=True)[1])
            first = first[~crossed[triples[first]]]
            triples = triples[first]
            came = came[first]
            crossed[triples] = True
            forward = self.subject[triples] == front[came]
            parts.append(_Rows(triples, np.full(len(triples), step), forward, ways[came, :-1]))
            reached = np.where(forward, self.object[triples], self.subject[triples])
            first = np.sort(np.unique(reached, return_index=True)[1])
            first = first[~seen[reached[first]]]
            front = reached[first]
            seen[front] = True
            ways = ways[came[first]].copy()
            ways[:, step - 1] = 2 * self.relation[triples[first]] + forward[first]
        return _joined(parts)


def _elsewhere(data: GraphQuestions, around: _Rows, count: int, bits: np.random.Generator) -> _Rows:
    """Up to ``count`` random triples of the graph that are not around."""
    graph = int(np.searchsorted(data.graphs, around.triples[0], side="right"))
    others = np.setdiff1d(np.arange(data.graphs[graph - 1], data.graphs[graph]), around.triples, assume_unique=True)
    drawn = bits.permutation(others)[:count]
    return _Rows(
        drawn,
        np.zeros(len(drawn), np.int64),
        np.zeros(len(drawn), np.bool_),
        np.full((len(drawn), around.via.shape[1]), -1, np.int64),
    )


def _joined(parts: list[_Rows]) -> _Rows:
    return _Rows(*map(np.concatenate, zip(*parts)))
