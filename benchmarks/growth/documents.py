"""Documents: BM25, and search by vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from growth import Cost, Item, measured

QUERIES = 100


def bm25(size: int, folder: Path) -> Cost:
    """Split documents of 60 words into words and index them."""
    from workloads.data.retrieval.bm25 import Tokenised

    texts, _ = _texts(size)
    Tokenised(texts[:10]).search([[0]], 10)  # imports bm25s and SciPy
    with measured(folder) as cost:
        Tokenised(texts).index()
    return cost


def bm25_search(size: int, folder: Path) -> Cost:
    """Search them by all queries together."""
    from workloads.data.retrieval.bm25 import Tokenised

    texts, queries = _texts(size)
    tokenised = Tokenised(texts)
    search = tokenised.index()
    terms = tokenised.terms(queries)
    with measured(folder) as cost:
        search(terms, 100)
    return cost


def bm25_cached(size: int, folder: Path) -> Cost:
    """Read a hundred candidates of each of so many queries from the cache."""
    import numpy as np

    from workloads.data.conversion_cache import cached_arrays

    source = np.random.default_rng(0)
    arrays = {
        "docs": source.integers(0, 2**31, (size, 100), np.int32),
        "scores": source.random((size, 100), np.float32),
    }
    cached_arrays("bm25", "scale", lambda: arrays)
    with measured(folder) as cost:
        cached_arrays("bm25", "scale", dict)
    return cost


def _texts(size: int) -> tuple[list[str], list[str]]:
    """Documents of 60 words, drawn by Zipf's law, and queries of six."""
    import numpy as np

    source = np.random.default_rng(0)
    ranks = np.minimum(source.zipf(1.3, (size + 10, 60)), 200_000)
    texts = [" ".join(f"w{rank}" for rank in row) for row in ranks.tolist()]
    queries = [" ".join(text.split()[first : first + 6]) for text in texts[-10:] for first in range(0, 60, 6)]
    return texts[:-10], queries


def index(size: int, folder: Path) -> Cost:
    """Write vectors of 384 dimensions as a segment of an index."""
    vectors, _ = _vectors(size)
    with measured(folder, private=True) as cost:
        _written(vectors, folder)
    return cost


def search(size: int, folder: Path) -> Cost:
    """Search the index exactly."""
    from workloads.encoders.search import exact_topk

    vectors, queries = _vectors(size)
    written = _written(vectors, folder)
    with measured(folder, private=True) as cost:
        exact_topk(queries, written.blocks(), 100)
    return cost


def lists(size: int, folder: Path) -> Cost:
    """Make the lists of an approximate search."""
    import torch

    from workloads.encoders.approximate import Approximate

    rows = torch.from_numpy(_vectors(size)[0])
    with measured(folder) as cost:
        Approximate(rows)
    return cost


def search_lists(size: int, folder: Path) -> Cost:
    """Search by lists with a recall of 95%, after the number of probes is chosen."""
    import torch

    from workloads.encoders.approximate import Approximate

    vectors, queries = _vectors(size)
    approximate = Approximate(torch.from_numpy(vectors))
    for _ in range(2):
        approximate.search(queries, 100, 0.95)
    with measured(folder) as cost:
        approximate.search(queries, 100, 0.95)
    return cost


def _vectors(size: int) -> tuple[Any, Any]:
    """Vectors (size, 384) around a thousand centres, and queries like them."""
    import numpy as np
    import torch

    source = np.random.default_rng(0)
    centres = source.standard_normal((1000, 384), np.float32)
    rows = centres[source.integers(0, 1000, size + QUERIES)]
    rows += source.standard_normal(rows.shape, np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows[:size], torch.from_numpy(rows[size:])


def _written(vectors: Any, folder: Path) -> Any:
    import numpy as np

    from workloads.lifelong.index import Index

    written = Index("scale", 384, True, folder / "index")
    written.append(0, np.arange(len(vectors)), vectors)
    return written


DOCUMENTS = (10_000, 20_000, 40_000)
VECTORS = (25_000, 50_000, 100_000)

ITEMS = {
    "bm25": Item("BM25: index documents of 60 words", "document", DOCUMENTS, bm25),
    "bm25-search": Item(f"search them by {QUERIES} queries", "document", DOCUMENTS, bm25_search),
    "bm25-cached": Item("read candidates from the cache", "query", DOCUMENTS, bm25_cached),
    "index": Item("write vectors of 384 dimensions", "document", VECTORS, index),
    "search": Item(f"search them exactly by {QUERIES} queries", "document", VECTORS, search),
    "lists": Item("make lists of them", "document", DOCUMENTS, lists),
    "search-lists": Item("search by lists with 95% recall", "document", DOCUMENTS, search_lists),
}
