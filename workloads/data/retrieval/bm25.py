"""BM25 candidates of queries, for reranking and for hard negatives.

Uses bm25s (Lù, 2024) with Lucene's form of BM25, that library's constants k1 = 1.5 and b = .75, its list of 33 English
stop words and Snowball's English stemmer. It is imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from workloads.data.conversion_cache import cached_arrays
from workloads.data.datasets import fingerprint
from workloads.data.errors import DataError
from workloads.data.retrieval.types import Retrieval

VERSION = 1
"""Version of the candidates, in the names of cache files."""

K1, B = 1.5, 0.75
"""Saturation of term counts (k1), and weight of the document length (b)."""


AT_ONCE = 2**24
"""Postings that are added up at once: up to 256 MB of scores and document numbers."""


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


class Tokenised:
    """Documents as stemmed words, to search all or some of them; each document and query is split into words once."""

    def __init__(self, docs: Sequence[str]) -> None:
        """Split and stem.

        Raises:
            DataError: bm25s or PyStemmer is not installed.
        """
        self._library, self._stemmer = _library()
        tokens = self._library.tokenize(list(docs), **self._settings)
        self._vocabulary: dict[str, int] = tokens.vocab
        self._docs: list[list[int]] = tokens.ids

    @property
    def _settings(self) -> dict[str, Any]:
        return {"stopwords": "en", "stemmer": self._stemmer, "show_progress": False}

    def terms(self, queries: Sequence[str]) -> list[list[int]]:
        """The words of each query that are in a document, as numbers."""
        words = self._library.tokenize(list(queries), return_ids=False, **self._settings)
        return [[self._vocabulary[word] for word in query if word in self._vocabulary] for query in words]

    def search(self, queries: Sequence[list[int]], depth: int, docs: NDArray[np.int64] | None = None) -> Candidates:
        """The ``depth`` best documents of each query.

        Args:
            queries: of :meth:`terms`.
            docs: numbers of the documents that are searched; None: all. Numbers in the result are positions among
                these, and equal scores rank by them.
        """
        return self.index(docs)(queries, depth)

    def index(self, docs: NDArray[np.int64] | None = None) -> Callable[[Sequence[list[int]], int], Candidates]:
        """A function of queries and depth that searches these documents, as :meth:`search` does."""
        count = len(self._docs) if docs is None else len(docs)
        chosen = self._docs if docs is None else [self._docs[doc] for doc in docs.tolist()]
        if not any(chosen):  # no document has a word
            postings = csr_array((len(self._vocabulary), count), dtype=np.float32)
        else:
            index = self._library.BM25(method="lucene", k1=K1, b=B)
            index.index((chosen, dict(self._vocabulary)), show_progress=False)
            parts = index.scores["data"], index.scores["indices"], index.scores["indptr"]
            postings = csr_array(parts, shape=(len(parts[2]) - 1, count))
        return lambda queries, depth: _best(postings, queries, depth)


def search(docs: Sequence[str], queries: Sequence[str], depth: int) -> Candidates:
    """The ``depth`` best documents of each query.

    Raises:
        DataError: bm25s or PyStemmer is not installed.
    """
    tokenised = Tokenised(docs)
    return tokenised.search(tokenised.terms(queries), depth)


def _best(postings: csr_array, queries: Sequence[list[int]], depth: int) -> Candidates:
    """The best documents of queries, by products of sparse matrices, whose cost is the queries' postings.

    ``postings`` (V, N) holds the score of each word in each document. Scores are added in the order of a query's words,
    as bm25s adds them.
    """
    ranked = Candidates(
        np.full((len(queries), depth), -1, np.int32), np.full((len(queries), depth), -np.inf, np.float32)
    )
    lengths = np.diff(postings.indptr)
    for part in _parts([int(lengths[query].sum()) for query in queries]):
        terms = queries[part]
        indptr = np.cumsum([0, *map(len, terms)])
        columns = np.concatenate([np.asarray(query, np.int32) for query in terms])
        block = csr_array((np.ones(len(columns), np.float32), columns, indptr), shape=(len(terms), postings.shape[0]))
        scores = block @ postings
        for row, (first, last) in enumerate(pairwise(scores.indptr.tolist()), part.start):
            values = scores.data[first:last]
            hits = np.flatnonzero(values > 0)
            if len(hits) > depth:
                cut = np.partition(values[hits], len(hits) - depth)[len(hits) - depth]
                hits = hits[values[hits] >= cut]  # includes all ties with the last one
            numbers = scores.indices[first:last][hits]
            order = np.lexsort((numbers, -values[hits]))[:depth]
            ranked.docs[row, : len(order)] = numbers[order]
            ranked.scores[row, : len(order)] = values[hits][order]
    return ranked


def _parts(costs: Sequence[int]) -> Iterator[slice]:
    """Ranges of queries with at most :data:`AT_ONCE` postings, or one query."""
    first = total = 0
    for row, cost in enumerate(costs):
        if row > first and total + cost > AT_ONCE:
            yield slice(first, row)
            first = row
            total = 0
        total += cost
    if first < len(costs):
        yield slice(first, len(costs))


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
        with _without_jax():
            import bm25s
        import Stemmer
    except ImportError as error:
        raise DataError(
            f"BM25 needs the package {error.name}",
            fix="Install bm25s and PyStemmer, or bring the folder bm25/ of another machine's cache",
        ) from None
    return bm25s, Stemmer.Stemmer("english")


@contextmanager
def _without_jax() -> Iterator[None]:
    """Within the block, bm25s cannot import JAX. It would start it, and JAX takes three quarters of a GPU's memory."""
    name = "jax.lax" if "jax" in sys.modules else "jax"
    loaded = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if loaded is None:
            del sys.modules[name]
        else:
            sys.modules[name] = loaded
