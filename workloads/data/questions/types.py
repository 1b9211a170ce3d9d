"""Types of question datasets: with names, as in the files, and numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KIND = "graph_questions"
PARTS = ("train", "dev", "test")


@dataclass(frozen=True, eq=False)
class GraphQuestions:
    """Q questions and T triples of one or several graphs, all numbered from 0 in the order of the files.

    ``entities`` and ``relations`` are names; graphs have no common entities. ``triples`` (T, 3) int32 has rows
    [subject, relation, object]; graph g has ``graphs[g]`` to ``graphs[g + 1]``. For each question: ``topic`` (Q,), the
    entity where it starts, ``hops`` (Q,), its number of steps, ``answer`` (Q,), its last triple, ``part`` (Q,), the
    index in :data:`PARTS`, ``type`` (Q,), the index in ``types``, and ``family`` (Q,), equal for paraphrases. ``odds``,
    for generated questions, has rows [question, triple] with the probability that the triple is the answer.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    entities: Sequence[str]
    relations: Sequence[str]
    triples: NDArray[np.int32]
    graphs: NDArray[np.int64]
    topic: NDArray[np.int64]
    hops: NDArray[np.int64]
    answer: NDArray[np.int64]
    part: NDArray[np.int8]
    type: NDArray[np.int64]
    types: Sequence[str]
    family: NDArray[np.int64]
    odds: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Question:
    """A question in a file, with names; ``line`` is its line number, from 1."""

    id: str
    text: str
    kb: str
    hops: int
    topic: str
    path: tuple[tuple[str, str, str], ...]
    part: str
    type: str
    line: int = 0


Graph: TypeAlias = Sequence[tuple[str, str, str]]
"""The triples of a graph, with names."""
