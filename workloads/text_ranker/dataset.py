"""A collection in the form that training and evaluation use, shared by the trials of a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.retrieval.bm25 import Candidates, candidates
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Queries, Retrieval, split_queries
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.text_ranker.params import Params

_KEPT = 4  # collections a process keeps


@dataclass(frozen=True)
class Lists:
    """What is ranked for Q queries: C candidates each, as BM25 orders them, and what the ranking is measured by.

    ``queries`` (Q,) and ``docs`` (Q, C) are numbers, docs -1 past a list's end; ``bm25`` (Q, C) its scores, -inf there;
    ``grades`` (Q, C) of the candidates, 0 where not judged; ``judged`` (Q, J) of all judged documents, 0 to fill up.
    """

    queries: NDArray[np.int64]
    docs: NDArray[np.int64]
    bm25: NDArray[np.float32]
    grades: NDArray[np.float32]
    judged: NDArray[np.float32]


@dataclass(frozen=True)
class RankerData:
    """A collection, its queries' parts and BM25's candidates of every query, ``depth`` or more."""

    data: Retrieval
    queries: Queries
    candidates: Candidates

    @cached_property
    def gap_max(self) -> float:
        """The largest difference of two grades in the judgements and 0, which the adaptive losses divide by."""
        return float(self.data.judgements[:, 2].max())

    def vocabulary(self) -> list[str]:
        """The texts that an encoder from scratch takes its words from: documents and training queries."""
        read: list[str] = self.data.docs.to_pylist() + self.data.queries.take(self.queries.train).to_pylist()
        return read

    def lists(self, queries: NDArray[np.int64], depth: int) -> Lists:
        """The lists of some queries, the first ``depth`` candidates of each."""
        docs = self.candidates.docs[queries, :depth].astype(np.int64)
        starts, stops = self.data.indptr[queries], self.data.indptr[queries + 1]
        judged = np.zeros((len(queries), int((stops - starts).max(initial=0))), np.float32)
        row, column = np.nonzero(np.arange(judged.shape[1]) < (stops - starts)[:, None])
        judged[row, column] = self.data.judgements[starts[row] + column, 2]
        grades = self.grades(np.repeat(queries, docs.shape[1]), docs.ravel()).reshape(docs.shape)
        return Lists(queries, docs, self.candidates.scores[queries, :depth], grades, judged)

    def grades(self, queries: NDArray[np.int64], docs: NDArray[np.int64]) -> NDArray[np.float32]:
        """The grade of each pair (n,), 0 for one that was not judged."""
        place, known = self._places(queries, docs)
        return np.where(known, self.data.judgements[place, 2], 0).astype(np.float32)

    def is_judged(self, queries: NDArray[np.int64], docs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each pair was judged, (n,)."""
        return self._places(queries, docs)[1]

    def _places(
        self, queries: NDArray[np.int64], docs: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Each pair's row among the judgements, which are ordered, and whether it is there."""
        codes = queries * len(self.data.docs) + docs
        place = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        return place, (self._codes[place] == codes) & (docs >= 0)

    @cached_property
    def _codes(self) -> NDArray[np.int64]:
        rows = self.data.judgements.astype(np.int64)
        return rows[:, 0] * len(self.data.docs) + rows[:, 1]


@dataclass(frozen=True)
class Texts:
    """The token ids of all queries and documents, without special tokens: what sequences are made of."""

    queries: Tokens
    docs: Tokens


def prepare(params: Params, root: Path, holdout: bool) -> RankerData:
    """The collection, split, with its candidates; from the second call of a process on, in a millisecond.

    Raises:
        workloads.data.DataError: the dataset is unknown, missing or damaged, or bm25s is not installed.
        ValueError: there are too few queries.
    """
    data = load_retrieval(params.dataset, root, params.dataset_unknown)
    depth, shares = max(params.eval_candidates, params.pool), (params.split_validation, params.split_test)
    return _prepare(params.dataset, root, data, depth, params.split_seed, *shares, holdout)


@lru_cache(maxsize=_KEPT)
def _prepare(
    dataset: str, root: Path, data: Retrieval, depth: int, seed: int, validation: float, test: float, holdout: bool
) -> RankerData:
    queries = split_queries(data, seed=seed, validation=validation, test=test, holdout=holdout)
    return RankerData(data, queries, candidates(dataset, root, data, depth))


@lru_cache(maxsize=_KEPT)
def texts(data: Retrieval, definition: str) -> Texts:
    """All queries and documents, tokenised once a process for each definition of a tokenizer."""
    tokenizer = Tokenizer(definition, 1)
    return Texts(*(tokenizer.bare(column.to_pylist()) for column in (data.queries, data.docs)))
