"""A retrieval collection prepared for training and evaluation, cached per process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.abstention.part import split_collection
from workloads.data.digests import digest
from workloads.data.retrieval.bm25 import Candidates, candidates
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.runs import read_run
from workloads.data.retrieval.types import Queries, Retrieval
from workloads.encoders.served_text import passages
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.memory import BoundedCache
from workloads.text_ranker.params import Params


@dataclass(frozen=True)
class Lists:
    """The candidates of Q queries in BM25's order, C each, with their judgements.

    ``queries`` (Q,) and ``docs`` (Q, C) are indices; ``docs`` is padded with -1. ``bm25`` (Q, C): BM25's scores, padded
    with -inf. ``grades`` (Q, C): grades of the candidates, 0 without a judgement. ``judged`` (Q, J): grades of all
    judged documents, padded with 0.
    """

    queries: NDArray[np.int64]
    docs: NDArray[np.int64]
    bm25: NDArray[np.float32]
    grades: NDArray[np.float32]
    judged: NDArray[np.float32]


@dataclass(frozen=True)
class RankerData:
    """A collection, its split of the queries, and BM25's candidates of every query.

    ``abstention``: the queries of the abstention part that have candidates. ``held``: those of the validation part,
    also in a refit, which trains on them.
    """

    data: Retrieval
    queries: Queries
    candidates: Candidates
    abstention: NDArray[np.int64]
    held: NDArray[np.int64]

    @cached_property
    def gap_max(self) -> float:
        """The largest difference between two grades, 0 included. The adaptive losses divide by it."""
        return float(self.data.judgements[:, 2].max())

    def vocabulary(self) -> list[str]:
        """The texts whose words make the vocabulary of an encoder from scratch: documents and training queries."""
        texts: list[str] = self.data.docs.to_pylist() + self.data.queries.take(self.queries.train).to_pylist()
        return texts

    def lists(self, queries: NDArray[np.int64], depth: int) -> Lists:
        """The first ``depth`` candidates of each of some queries."""
        docs = self.candidates.docs[queries, :depth].astype(np.int64)
        grades = self.data.grades(queries[:, None], docs)
        return Lists(queries, docs, self.candidates.scores[queries, :depth], grades, self.data.judged_grades(queries))


@dataclass(frozen=True)
class Texts:
    """The token ids of all queries and documents, without special tokens.

    ``starts`` (N + 1,): document i has the texts ``docs[starts[i]:starts[i + 1]]``, its passages; None if each is one
    text. ``cut`` of a last passage: the document goes on.
    """

    queries: Tokens
    docs: Tokens
    starts: NDArray[np.int64] | None = None


def prepare(params: Params, root: Path, holdout: bool, abstention_part: float = 0.0) -> RankerData:
    """Load and split a collection and compute its candidates. The result is cached in the process.

    Raises:
        workloads.data.DataError: the dataset is unknown, missing or damaged, or bm25s is not installed.
        ValueError: there are too few queries.
    """
    data = load_retrieval(params.dataset, root, params.dataset_unknown)
    depth = max(params.eval_candidates, params.pool)
    shares = (params.split_validation, params.split_test)
    run = None if params.first_stage is None else (params.first_stage, digest(Path(params.first_stage)))
    unknown = params.dataset_unknown
    return _prepare(
        params.dataset, root, data, depth, params.split_seed, *shares, holdout, run, unknown, abstention_part
    )


@BoundedCache
def _prepare(
    dataset: str,
    root: Path,
    data: Retrieval,
    depth: int,
    seed: int,
    validation: float,
    test: float,
    holdout: bool,
    run: tuple[str, str] | None,
    unknown: str,
    share: float,
) -> RankerData:
    queries, held, abstention = split_collection(data, seed, validation, test, holdout=holdout, share=share)
    listed = candidates(dataset, root, data, depth) if run is None else read_run(Path(run[0]), data, depth, unknown)
    return RankerData(data, queries, listed, abstention[listed.counts[abstention] > 0], held)


@BoundedCache
def texts(data: Retrieval, definition: str, split: tuple[int, int, int] | None = None) -> Texts:
    """Tokenise all queries and documents. Cached per process and tokenizer.

    Args:
        split: words, stride and number of passages, as of :func:`~workloads.encoders.served_text.passages`.
    """
    tokenizer = Tokenizer(definition, 1)
    queries = tokenizer.bare(data.queries.to_pylist())
    docs: list[str] = data.docs.to_pylist()
    if split is None:
        return Texts(queries, tokenizer.bare(docs))
    parts = [passages(text, *split) for text in docs]
    tokens = tokenizer.bare([passage for own in parts for passage in own])
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(own) for own in parts])])
    words, stride, most = split
    longer = np.array([len(text.split()) > words + stride * (most - 1) for text in docs])
    tokens.cut[starts[1:][longer] - 1] = True
    return Texts(queries, tokens, starts)
