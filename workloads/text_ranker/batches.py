"""What is trained on in a pass: for each query a group of documents, relevant ones and others, drawn again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.encoders.tokens import spans
from workloads.schedule import own_part, passes_of, steps_per_pass
from workloads.seeding import derive
from workloads.text_ranker.dataset import RankerData
from workloads.text_ranker.params import Params


@dataclass(frozen=True)
class Groups:
    """A group of G documents for each of n queries.

    ``queries`` (n,) and ``docs`` (n, G) are numbers, docs -1 where a group is smaller; ``grades`` (n, G), 0 there and
    where a document was not judged; ``judged`` (n, G).
    """

    queries: NDArray[np.int64]
    docs: NDArray[np.int64]
    grades: NDArray[np.float32]
    judged: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def alike(self) -> NDArray[np.bool_]:
        """The groups with nothing to prefer: all their documents have one grade, (n,)."""
        lowest = np.where(self.docs < 0, np.inf, self.grades).min(1)
        alike: NDArray[np.bool_] = self.grades.max(1) == lowest
        return alike

    def take(self, rows: NDArray[np.int64]) -> Groups:
        """Some of the groups."""
        return Groups(self.queries[rows], self.docs[rows], self.grades[rows], self.judged[rows])

    def split(self, parts: int) -> list[Groups]:
        """Micro-batches, none of them empty."""
        return [self.take(rows) for rows in np.array_split(np.arange(len(self)), parts) if len(rows)]


class GroupSampler:
    """The training queries with the documents that their groups are drawn from."""

    def __init__(self, data: RankerData, params: Params) -> None:
        self.data, self.params = data, params
        self.queries = data.queries.train
        judgements = data.data.judgements
        place, _ = spans(data.data.indptr[self.queries], np.diff(data.data.indptr)[self.queries])
        mine = judgements[place].astype(np.int64)
        relevant = mine[:, 2] > 0
        hard = data.candidates.docs[self.queries, : params.pool].astype(np.int64)
        found = np.stack([np.repeat(self.queries, hard.shape[1]), hard.ravel()], 1)[hard.ravel() >= 0]
        unjudged = found[~data.is_judged(found[:, 0], found[:, 1])]
        self._relevant = mine[relevant, :2]
        self._hard = np.concatenate([mine[~relevant, :2], unjudged])

    def groups(self, seed: int, number: int) -> Groups:
        """The groups of pass ``number``, in the order of the queries: a function of the seed alone.

        Of ``negatives`` documents the share ``hard`` comes from those that BM25 found or that were judged 0, without
        replacement, and where they run out, and for the rest, from all documents that are not relevant.
        """
        params, bits = self.params, _bits(seed, "groups", number)
        n_hard = round(params.hard * params.negatives)
        positive = _sampled(self._relevant, self.queries, params.positives, bits)
        hard = _sampled(self._hard, self.queries, n_hard, bits)
        others = bits.integers(0, len(self.data.data.docs), (len(self.queries), params.negatives))
        others[:, :n_hard] = np.where(hard >= 0, hard, others[:, :n_hard])
        docs = np.concatenate([positive, others], 1)
        queries = np.repeat(self.queries, docs.shape[1])
        grades = self.data.grades(queries, docs.ravel()).reshape(docs.shape)
        # What is drawn from all documents may be relevant, or in the group already.
        docs[:, params.positives :][grades[:, params.positives :] > 0] = -1
        docs[np.tril(docs[:, :, None] == docs[:, None, :], -1).any(2)] = -1
        judged = self.data.is_judged(queries, docs.ravel()).reshape(docs.shape)
        return Groups(self.queries, docs, np.where(docs < 0, 0, grades).astype(np.float32), judged)

    @cached_property
    def steps_per_pass(self) -> int:
        """Global batches in a pass; the last may be smaller."""
        return steps_per_pass(len(self.queries), self.params.batch_size)

    def batches(self, runtime: Runtime, epoch: int) -> Iterator[tuple[Groups, float]]:
        """This rank's part of each global batch of ``epoch``, contiguous parts by rank, and what a query weighs in it.

        That is one over the batch's size; 0 for a query that stands in on a rank which has none of a small last batch.
        An epoch is a pass over the queries in a random order, or the next ``runtime.steps_per_epoch`` of passes.
        """
        size = self.params.batch_size
        for number, places in passes_of(epoch, self.steps_per_pass, runtime.steps_per_epoch):
            groups = self.groups(runtime.seed, number)
            order = _bits(runtime.seed, "order", number).permutation(len(self.queries))
            for place in places:
                rows = order[place * size : (place + 1) * size]
                own = rows[own_part(len(rows), runtime.rank, runtime.world_size)]
                yield (groups.take(own), 1 / len(rows)) if len(own) else (groups.take(rows[:1]), 0.0)


def _bits(seed: int, stream: str, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, stream, number)))


def _sampled(
    pairs: NDArray[np.int64], queries: NDArray[np.int64], count: int, bits: np.random.Generator
) -> NDArray[np.int64]:
    """``count`` different documents of each query at random, (n, count), -1 where it has fewer.

    Args:
        pairs: rows [query, document], in any order.
        queries: ascending.
    """
    order = np.lexsort((bits.random(len(pairs)), pairs[:, 0]))
    row = np.searchsorted(queries, pairs[order, 0])
    counts = np.bincount(row, minlength=len(queries))
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((len(queries), count), -1, np.int64)
    kept = place < count
    found[row[kept], place[kept]] = pairs[order[kept], 1]
    return found
