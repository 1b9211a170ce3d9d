"""Training batches: for each query a group of relevant and other documents, sampled again in every pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.encoders.tokens import spans
from workloads.sampling.hard import hardest
from workloads.schedule import own_or_stand_in, passes_of, steps_per_pass
from workloads.seeding import derive
from workloads.text_ranker.dataset import RankerData
from workloads.text_ranker.params import Params


@dataclass(frozen=True)
class Groups:
    """A group of G documents for each of n queries.

    ``queries`` (n,) and ``docs`` (n, G) are indices; ``docs`` is padded with -1. ``grades`` (n, G): 0 for padding and
    for documents without a judgement. ``judged`` (n, G): which documents have one.
    """

    queries: NDArray[np.int64]
    docs: NDArray[np.int64]
    grades: NDArray[np.float32]
    judged: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def alike(self) -> NDArray[np.bool_]:
        """Which groups have nothing to compare because all their documents have the same grade, (n,)."""
        lowest = np.where(self.docs < 0, np.inf, self.grades).min(1)
        alike: NDArray[np.bool_] = self.grades.max(1) == lowest
        return alike

    def take(self, rows: NDArray[np.int64]) -> Groups:
        """The groups at ``rows``."""
        return Groups(self.queries[rows], self.docs[rows], self.grades[rows], self.judged[rows])

    def split(self, parts: int) -> list[Groups]:
        """Divide into at most ``parts`` micro-batches, none of them empty."""
        return [self.take(rows) for rows in np.array_split(np.arange(len(self)), parts) if len(rows)]


class GroupSampler:
    """Samples a group of documents for each training query."""

    def __init__(self, data: RankerData, params: Params) -> None:
        self.data = data
        self.params = params
        self.queries = data.queries.train
        judgement_rows, _ = spans(data.data.indptr[self.queries], np.diff(data.data.indptr)[self.queries])
        judgements = data.data.judgements[judgement_rows].astype(np.int64)
        relevant = judgements[:, 2] > 0
        hard = data.candidates.docs[self.queries, : params.pool].astype(np.int64)
        pairs = np.stack([np.repeat(self.queries, hard.shape[1]), hard.ravel()], 1)[hard.ravel() >= 0]
        unjudged = pairs[~data.data.is_judged(pairs[:, 0], pairs[:, 1])]
        self.relevant = judgements[relevant, :2]
        """Rows [query, document]."""
        self.hard = np.concatenate([judgements[~relevant, :2], unjudged])
        """The same of the documents that hard negatives come from."""

    def mined(self, relevant: torch.Tensor, hard: torch.Tensor) -> NDArray[np.int64]:
        """The hard negatives with the highest scores below the margin, (n, negatives), padded with -1.

        Args:
            relevant: scores of the pairs ``self.relevant``, on the CPU.
            hard: scores of the pairs ``self.hard``.
        """
        assert self.params.hard_margin is not None
        lowest = torch.full((len(self.queries),), torch.inf)
        lowest.scatter_reduce_(
            0, torch.from_numpy(np.searchsorted(self.queries, self.relevant[:, 0])), relevant, "amin"
        )
        order = np.argsort(self.hard[:, 0], kind="stable")
        row, column = _places(self.hard[order, 0], self.queries)
        docs = np.full((len(self.queries), 1 + column.max(initial=0)), -1, np.int64)
        docs[row, column] = self.hard[order, 1]
        scores = torch.full(docs.shape, -torch.inf)
        scores[row, column] = hard[torch.from_numpy(order)]
        count = round(self.params.hard * self.params.negatives)
        chosen = hardest(scores, lowest, count, self.params.hard_margin, torch.from_numpy(docs < 0)).numpy()
        return np.where(chosen < 0, -1, np.take_along_axis(docs, np.maximum(chosen, 0), 1))

    def groups(self, seed: int, number: int, mined: NDArray[np.int64] | None = None) -> Groups:
        """The groups of pass ``number``, in the order of the queries. Depends on seed, number and ``mined`` only.

        A group has ``positives`` relevant documents and ``negatives`` others. The share ``hard`` of the others is
        sampled without replacement from BM25's candidates and documents judged 0; the rest, and what these cannot
        fill, from all documents that are not relevant. With ``mined``, it is these in the place of the sampled ones.
        """
        params = self.params
        bits = _bits(seed, "groups", number)
        n_hard = round(params.hard * params.negatives)
        positive = _sampled(self.relevant, self.queries, params.positives, bits)
        hard = _sampled(self.hard, self.queries, n_hard, bits) if mined is None else mined
        others = bits.integers(0, len(self.data.data.docs), (len(self.queries), params.negatives))
        others[:, :n_hard] = np.where(hard >= 0, hard, others[:, :n_hard])
        docs = np.concatenate([positive, others], 1)
        grades = self.data.data.grades(self.queries[:, None], docs)
        # A document drawn from all documents may be relevant, or be in the group already.
        docs[:, params.positives :][grades[:, params.positives :] > 0] = -1
        docs[_is_repeated(docs)] = -1
        judged = self.data.data.is_judged(self.queries[:, None], docs)
        return Groups(self.queries, docs, np.where(docs < 0, 0, grades).astype(np.float32), judged)

    @cached_property
    def steps_per_pass(self) -> int:
        """Number of global batches in a pass; the last may be smaller."""
        return steps_per_pass(len(self.queries), self.params.batch_size)

    def batches(
        self, runtime: Runtime, epoch: int, mined: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[Groups, float]]:
        """This rank's contiguous part of each global batch of ``epoch``, and the weight of each of its queries.

        The weight is one over the size of the global batch. A rank without a query in a small last batch gets a
        stand-in query of weight 0. An epoch is one pass over the queries in random order, or
        ``runtime.steps_per_epoch`` steps.
        """
        size = self.params.batch_size
        for number, steps in passes_of(epoch, self.steps_per_pass, runtime.steps_per_epoch):
            groups = self.groups(runtime.seed, number, mined)
            order = _bits(runtime.seed, "order", number).permutation(len(self.queries))
            for step in steps:
                rows = order[step * size : (step + 1) * size]
                own, weight = own_or_stand_in(rows, runtime.rank, runtime.world_size)
                yield groups.take(own), weight


def _places(of_pairs: NDArray[np.int64], queries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row of each pair's query among ``queries``, and its number among the query's pairs; both sides ascend."""
    row = np.searchsorted(queries, of_pairs)
    counts = np.bincount(row, minlength=len(queries))
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _bits(seed: int, stream: str, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, stream, number)))


def _is_repeated(docs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an earlier column of the same row has this document, (n, G)."""
    repeated = np.zeros(docs.shape, np.bool_)
    for column in range(1, docs.shape[1]):
        repeated[:, column] = (docs[:, :column] == docs[:, column : column + 1]).any(1)
    return repeated


def _sampled(
    pairs: NDArray[np.int64], queries: NDArray[np.int64], count: int, bits: np.random.Generator
) -> NDArray[np.int64]:
    """Sample ``count`` distinct documents of each query, (n, count), padded with -1.

    Args:
        pairs: rows [query, document], in any order.
        queries: ascending.
    """
    order = np.lexsort((bits.random(len(pairs)), pairs[:, 0]))
    row, column = _places(pairs[order, 0], queries)
    sampled = np.full((len(queries), count), -1, np.int64)
    kept = column < count
    sampled[row[kept], column[kept]] = pairs[order[kept], 1]
    return sampled
