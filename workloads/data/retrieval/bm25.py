"""BM25 candidates of queries, for reranking and for hard negatives.

Uses bm25s (Lù, 2024) with Lucene's form of BM25, that library's constants k1 = 1.5 and b = .75, its list of 33 English
stop words and Snowball's English stemmer. It is imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.data.conversion_cache import cached_arrays
from workloads.data.datasets import fingerprint
from workloads.data.errors import DataError

if TYPE_CHECKING:
    from workloads.data.retrieval.types import Retrieval

VERSION = 1
"""Version of the candidates, in the names of cache files."""

K1, B = 1.5, 0.75
"""Saturation of term counts (k1), and weight of the document length (b)."""


class Candidates(NamedTuple):
    """The documents with the highest scores of each of Q queries, best first, ties by document number.

    After the end of a list, ``docs`` (Q, K) int32 is -1 and ``scores`` (Q, K) float32 is -inf. Documents without a term
    of the query are not candidates, so a list may be short or empty.
    """

    docs: NDArray[np.int32]
    scores: NDArray[np.float32]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of candidates of each query, (Q,)."""
        counts: NDArray[np.int64] = (self.docs >= 0).sum(1)
        return counts


def search(docs: Sequence[str], queries: Sequence[str], depth: int) -> Candidates:
    """The ``depth`` best documents of each query.

    Raises:
        DataError: bm25s or PyStemmer is not installed.
    """
    bm25s, stemmer = _library()
    ranked = Candidates(
        np.full((len(queries), depth), -1, np.int32), np.full((len(queries), depth), -np.inf, np.float32)
    )
    settings: dict[str, Any] = {"stopwords": "en", "stemmer": stemmer, "show_progress": False}
    tokens = bm25s.tokenize(list(docs), **settings)
    if not tokens.vocab:  # no document has a word
        return ranked
    index = bm25s.BM25(method="lucene", k1=K1, b=B)
    index.index(tokens, show_progress=False)
    for row, terms in enumerate(bm25s.tokenize(list(queries), return_ids=False, **settings)):
        scores = index.get_scores(terms) if any(term in tokens.vocab for term in terms) else np.zeros(0, np.float32)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > depth:
            cut = np.partition(scores[hits], len(hits) - depth)[len(hits) - depth]
            hits = hits[scores[hits] >= cut]  # includes all ties with the last one
        best = hits[np.argsort(-scores[hits], kind="stable")][:depth]
        ranked.docs[row, : len(best)], ranked.scores[row, : len(best)] = best, scores[best]
    return ranked


def candidates(name: str, root: Path, data: Retrieval, depth: int) -> Candidates:
    """Run :func:`search` for all queries of a dataset, once per machine; cached by the dataset's fingerprint.

    Args:
        name: name of the dataset.
        root: the data root.
        data: the loaded dataset.
        depth: maximal number of candidates of a query.

    Raises:
        DataError: bm25s is not installed, or a file of the dataset is missing.
        workloads.data.errors.CacheUnwritable: the cache cannot be written.
    """
    identity = f"{VERSION} BM25(k1={K1}, b={B}) {depth} {fingerprint(name, root)} {len(data.docs)} {len(data.queries)}"

    def make() -> dict[str, Any]:
        return search(data.docs.to_pylist(), data.queries.to_pylist(), depth)._asdict()

    return Candidates(**cached_arrays("bm25", identity, make))


def _library() -> tuple[Any, Any]:
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise DataError(
            f"BM25 needs the package {error.name}",
            fix="Install bm25s and PyStemmer, or bring the folder bm25/ of another machine's cache",
        ) from None
    return bm25s, Stemmer.Stemmer("english")
