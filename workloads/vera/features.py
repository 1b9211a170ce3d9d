"""The candidates of every query and their features: text, position in the graph, BM25's score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.data.questions.neighbourhoods import Neighbourhoods
from workloads.data.questions.types import GraphQuestions
from workloads.data.retrieval.bm25 import Candidates
from workloads.data.retrieval.types import Retrieval
from workloads.vera.predictor import words_of

NONE = ""
"""The category for missing values and values not seen in training; index 0."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Q queries, T texts of candidates, and L lists of candidates, which queries may share.

    List l has the rows ``indptr[l]`` to ``indptr[l + 1]``. For each row, ``text`` (n,) is the candidate's text,
    ``codes`` (n, K) its categorical features as indices into ``categories``, and ``numbers`` (n, F) float32 its other
    features; ``code_names`` and ``number_names`` name the features. ``list_of`` (Q,) is each query's list.

    ``relevant`` (m, 2): rows [query, position in its list], with ``grades`` (m,). ``all_grades`` (Q, J): grades of
    everything relevant to a query, candidate or not, padded with 0. ``type`` (Q,): index into ``types``. ``family``
    (Q,): equal for paraphrases. ``odds``, of generated data: rows [query, position] and the probability of being the
    answer. ``ends`` (n, 2), of a graph: subject and object of each row's triple, indices into ``entities``.
    """

    queries: Sequence[str]
    texts: Sequence[str]
    list_of: NDArray[np.int64]
    indptr: NDArray[np.int64]
    text: NDArray[np.int64]
    codes: NDArray[np.int64]
    numbers: NDArray[np.float32]
    code_names: tuple[str, ...]
    number_names: tuple[str, ...]
    categories: tuple[str, ...]
    relevant: NDArray[np.int64]
    grades: NDArray[np.float32]
    all_grades: NDArray[np.float32]
    type: NDArray[np.int64]
    types: Sequence[str]
    family: NDArray[np.int64]
    odds: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
    ends: NDArray[np.int64] | None = None
    entities: Sequence[str] = ()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of candidates of each query, (Q,)."""
        lengths: NDArray[np.int64] = np.diff(self.indptr)[self.list_of]
        return lengths


def graph_pool(data: GraphQuestions, around: Neighbourhoods) -> Pool:
    """The pool of a graph dataset, whose candidates are triples.

    Categories: number of steps and direction, the relation, and the relations crossed before it. Numbers:
    ``ln(1 + degree)`` of the subject and the object.
    """
    subject, relation, target = data.triples.astype(np.int64).T
    degree = np.log1p(np.bincount(np.concatenate([subject, target]), minlength=len(data.entities))).astype(np.float32)
    longest = int(data.hops.max())
    steps = ["random", *(f"{step}{way}" for step in range(1, longest + 1) for way in "<>")]
    crossed = [f"{name}{way}" for name in data.relations for way in "<>"]
    categories = (NONE, *steps, *data.relations, *crossed)
    first_relation = 1 + len(steps)
    first_crossed = 1 + len(steps) + len(data.relations)
    step = np.where(around.steps > 0, 2 * around.steps + around.forward, 1)
    codes = np.column_stack(
        [step, first_relation + relation[around.triples], np.where(around.via < 0, 0, first_crossed + around.via)]
    )
    answer = _located(around.indptr, around.triples, around.list_of, data.answer)
    answered = np.flatnonzero(answer >= 0)  # a path may leave the question's hops
    odds = None
    if data.odds is not None:
        rows, probability = data.odds
        places = _located(around.indptr, around.triples, around.list_of[rows[:, 0]], rows[:, 1])
        listed = places >= 0
        odds = np.column_stack([rows[listed, 0], places[listed]]), probability[listed]
    return Pool(
        queries=[words_of(text) for text in data.texts],
        texts=[
            words_of(f"{data.entities[s]} {data.relations[r]} {data.entities[o]}") for s, r, o in data.triples.tolist()
        ],
        list_of=around.list_of,
        indptr=around.indptr,
        text=around.triples,
        codes=codes,
        numbers=np.column_stack([degree[subject], degree[target]])[around.triples],
        code_names=("step", "relation", *(f"via_{number}" for number in range(1, longest))),
        number_names=("subject_degree", "object_degree"),
        categories=categories,
        relevant=np.column_stack([answered, answer[answered]]),
        grades=np.ones(len(answered), np.float32),
        all_grades=np.ones((len(data), 1), np.float32),
        type=data.type,
        types=data.types,
        family=data.family,
        odds=odds,
        ends=np.column_stack([subject, target])[around.triples],
        entities=data.entities,
    )


def collection_pool(data: Retrieval, retrieved: Candidates, depth: int) -> Pool:
    """The pool of a text collection: BM25's first ``depth`` documents of each query, with its score as the feature."""
    docs = retrieved.docs[:, :depth]
    count = len(data.queries)
    real = docs >= 0
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(real.sum(1))])
    text = docs[real].astype(np.int64)
    judgements = data.judgements.astype(np.int64)
    places = _located(indptr, text, judgements[:, 0], judgements[:, 1])
    listed = (places >= 0) & (judgements[:, 2] > 0)
    return Pool(
        queries=data.queries.to_pylist(),
        texts=data.docs.to_pylist(),
        list_of=np.arange(count),
        indptr=indptr,
        text=text,
        codes=np.zeros((len(text), 0), np.int64),
        numbers=retrieved.scores[:, :depth][real][:, None].astype(np.float32),
        code_names=(),
        number_names=("bm25",),
        categories=(NONE,),
        relevant=np.column_stack([judgements[listed, 0], places[listed]]),
        grades=judgements[listed, 2].astype(np.float32),
        all_grades=data.judged_grades(np.arange(count)),
        type=np.zeros(count, np.int64),
        types=("query",),
        family=data.family,
    )


def _located(
    indptr: NDArray[np.int64], items: NDArray[np.int64], lists: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The position of each wanted item in its list, -1 if it is not in it; ``lists`` and ``wanted`` are (m,)."""
    if not len(items):
        return np.full(len(wanted), -1, np.int64)
    span = int(max(items.max(), wanted.max(initial=0))) + 1
    keys = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)) * span + items
    order = np.argsort(keys, kind="stable")
    wanted_keys = lists * span + wanted
    rows = order[np.searchsorted(keys, wanted_keys, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[rows] == wanted_keys, rows - indptr[lists], -1)
