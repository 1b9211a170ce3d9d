"""A generated collection with planted relevance, in which BM25 makes errors that a model can learn to avoid.

Each topic has its own words, and each word a synonym (its twin). A query has some words of its topic. Its relevant
documents contain all of them (grade 2), or one of them and the twins of the others (grade 1). Documents of other topics
contain two of them, and BM25 ranks these above the relevant ones of grade 1. They differ in their tone, the common
words around: relevant documents mostly use one half of these, the others the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.data.draws import below, distinct
from workloads.data.retrieval.judged import Row, judged
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Planted:
    """Parameters of the generator.

    ``queries``: queries per topic. ``words``: pairs of twins per topic. ``asked``: words of a query. ``literal`` and
    ``meant``: relevant documents of a query, of grade 2 and 1. ``near``: documents with two words of the query.
    ``filler``: common words of a document. ``common``: number of common words, half of them for each tone. ``tone``:
    probability that a common word of a document has the document's tone.
    """

    topics: int = 8
    queries: int = 8
    words: int = 12
    asked: int = 3
    literal: int = 1
    meant: int = 2
    near: int = 6
    filler: int = 6
    common: int = 20
    tone: float = 0.8
    seed: int = 20


def generate(planted: Planted) -> Retrieval:
    """Draw the collection. All draws come from the raw stream of PCG64: the same on every machine."""
    import numpy as np

    bits = np.random.PCG64(planted.seed)
    docs: list[str] = []
    queries: list[str] = []
    rows: list[Row] = []
    for topic in range(planted.topics):
        for _ in range(planted.queries):
            query = distinct(bits, planted.words, planted.asked)
            name = f"q{len(queries)}"
            part = "test" if len(queries) % 2 else "train"
            queries.append(" ".join(_word(topic, word) for word in query))
            for grade, count in ((2, planted.literal), (1, planted.meant)):
                for _ in range(count):
                    own = [_word(topic, word, twin=grade == 1 and index > 0) for index, word in enumerate(query)]
                    rows.append(Row(name, f"d{len(docs)}", grade, part, Path(), 0))
                    docs.append(_document(bits, planted, own, relevant=True))
            for _ in range(planted.near):
                other = (topic + 1 + below(bits, planted.topics - 1)) % planted.topics
                borrowed = [_word(topic, query[index]) for index in distinct(bits, planted.asked, 2)]
                own = [*borrowed, _word(other, below(bits, planted.words))]
                docs.append(_document(bits, planted, own, relevant=False))
    return judged(
        ([f"d{number}" for number in range(len(docs))], docs),
        ([f"q{number}" for number in range(len(queries))], queries),
        rows,
    )


def _document(bits: np.random.PCG64, planted: Planted, telling: list[str], *, relevant: bool) -> str:
    half = planted.common // 2
    words = list(telling)
    for _ in range(planted.filler):
        in_tone = below(bits, 1000) < 1000 * planted.tone
        words.append(f"common{below(bits, half) + half * (in_tone != relevant)}")
    return " ".join(words[index] for index in distinct(bits, len(words), len(words)))


def _word(topic: int, word: int, *, twin: bool = False) -> str:
    return f"{'meant' if twin else 'said'}{topic}x{word}"


_DEFAULT = Planted()

SYNTHETIC_RETRIEVAL = Dataset(
    name="synthetic-retrieval",
    summary="planted relevance in grades, 8 topics, 576 documents, 64 queries, half of them test",
    kind="retrieval",
    version=f"1 {_DEFAULT}",
    reader=lambda _folder: generate(_DEFAULT),
)
