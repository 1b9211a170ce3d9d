"""BM25 candidates: scores against the formula, and the cache of candidates."""

from __future__ import annotations

import builtins
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer

from workloads.data import DataError
from workloads.data.cache import cache_dir, default_data_root
from workloads.data.retrieval import bm25 as module
from workloads.data.retrieval.bm25 import K1, B, Tokenised, candidates, search
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import split_queries
from workloads.metrics.retrieval import per_query

ROOT = Path(__file__).resolve().parents[5]

DOCS = ["cats purr purr", "dogs bark at cats", "birds", "", "the at of"]


def test_scores_match_the_formula_of_lucene() -> None:
    found = search(DOCS, ["purr", "cats bark"], 5)
    lengths = [3, 3, 1, 0, 0]  # without stop words
    average = sum(lengths) / len(lengths)

    def score(count: int, having: int, length: int) -> float:
        idf = math.log(1 + (len(DOCS) - having + 0.5) / (having + 0.5))
        return idf * count / (count + K1 * (1 - B + B * length / average))

    assert found.docs[0].tolist() == [0, -1, -1, -1, -1]
    assert found.scores[0, 0] == pytest.approx(score(2, 1, 3), rel=1e-5)
    assert found.docs[1].tolist() == [1, 0, -1, -1, -1]
    assert found.scores[1, :2] == pytest.approx([score(1, 2, 3) + score(1, 1, 3), score(1, 2, 3)], rel=1e-5)
    assert found.counts.tolist() == [1, 2]


def test_words_are_stemmed_and_stop_words_left_out() -> None:
    found = search(DOCS, ["barking CAT", "the", "", "unheard"], 3)
    assert found.docs[0].tolist() == [1, 0, -1]
    assert found.counts.tolist() == [2, 0, 0, 0]
    assert np.isneginf(found.scores[1:]).all()


def test_ties_rank_by_document_number_also_at_the_cut() -> None:
    found = search(["cat", "dog", "cat", "cat", "cat"], ["cat"], 3)
    assert found.docs.tolist() == [[0, 2, 3]]
    assert np.ptp(found.scores) == 0


def one_by_one(docs: list[str], queries: list[str], depth: int) -> list[list[tuple[int, float]]]:
    """Reference: bm25s scores one query after the other, over all documents."""
    settings: dict[str, Any] = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    index = bm25s.BM25(method="lucene", k1=K1, b=B)
    index.index(bm25s.tokenize(docs, **settings), show_progress=False)
    lists = []
    for terms in bm25s.tokenize(queries, return_ids=False, **settings):
        scores = index.get_scores(terms).tolist() if terms else []
        ranked = sorted((-score, doc) for doc, score in enumerate(scores) if score > 0)
        lists.append([(doc, -score) for score, doc in ranked[:depth]])
    return lists


@pytest.mark.parametrize("at_once", [1, 2**24])
@pytest.mark.parametrize("chosen", [None, [*range(7, 300, 3), 4]], ids=["all", "some"])
def test_batched_search_equals_search_query_by_query(
    chosen: list[int] | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    source = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(60)] + ["the"])
    docs, queries = (
        [
            " ".join(words[(61 * source.random(length) ** 2).astype(int)])
            for length in source.integers(0, longest, count)
        ]
        for count, longest in ((300, 12), (40, 6))
    )
    queries += ["w1 w1 w2 w1 unheard", ""]
    tokenised = Tokenised(docs)
    found = tokenised.search(tokenised.terms(queries), 10, None if chosen is None else np.array(chosen))
    expected = one_by_one([docs[doc] for doc in chosen or range(300)], queries, 10)
    for row, ranked in enumerate(expected):
        assert list(zip(found.docs[row], found.scores[row]))[: len(ranked)] == ranked
        assert (found.docs[row, len(ranked) :] == -1).all()


def test_documents_without_words_are_not_found() -> None:
    assert search(["", "the"], ["cat"], 2).docs.tolist() == [[-1, -1]]


def test_candidates_are_cached_by_dataset_depth_and_bm25_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_retrieval("synthetic-retrieval", Path())
    first = candidates("synthetic-retrieval", Path(), data, 10)
    with monkeypatch.context() as patch:
        patch.setattr("workloads.data.retrieval.bm25.search", None)
        kept = candidates("synthetic-retrieval", Path(), data, 10)
    assert np.array_equal(first.docs, kept.docs)
    assert np.array_equal(first.scores, kept.scores)
    assert candidates("synthetic-retrieval", Path(), data, 5).docs.shape == (64, 5)
    backwards = replace(data, docs=data.docs[::-1])
    with monkeypatch.context() as patch:
        patch.setattr("workloads.data.retrieval.bm25.fingerprint", lambda *_: "of the documents backwards")
        assert not np.array_equal(candidates("synthetic-retrieval", Path(), backwards, 10).docs, first.docs)
    monkeypatch.setattr("workloads.data.retrieval.bm25.K1", 0.5)
    assert not np.array_equal(candidates("synthetic-retrieval", Path(), data, 10).scores, first.scores)


def test_damaged_file_of_candidates_is_rebuilt() -> None:
    data = load_retrieval("synthetic-retrieval", Path())
    first = candidates("synthetic-retrieval", Path(), data, 10)
    (file,) = (cache_dir() / "bm25").glob("*.npz")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    for damaged in (bytes(content), b"", content[:100]):
        file.write_bytes(damaged)
        assert np.array_equal(candidates("synthetic-retrieval", Path(), data, 10).docs, first.docs)


def test_error_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "bm25s":
            raise ImportError(f"No module named {name!r}", name=name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"BM25 needs the package bm25s\. Install bm25s and PyStemmer"):
        search(DOCS, ["cat"], 1)


@pytest.mark.slow
@pytest.mark.data("scifact")
def test_bm25_on_scifact_reaches_the_expected_ndcg() -> None:
    """BEIR, table 2: .665 with other constants and without title and text joined; Lucene's flat index: .679."""
    import torch

    root = default_data_root()
    data = load_retrieval("scifact", root)
    test = split_queries(data, seed=0).test
    found = candidates("scifact", root, data, 100)
    rows = data.judgements[data.parts[data.judgements[:, 0]] == 3]
    relevant = {(int(query), int(doc)) for query, doc, _ in rows}
    grades = [[float((int(q), int(d)) in relevant) for d in found.docs[q]] for q in test]
    counts = np.bincount(rows[:, 0], minlength=len(data.queries))[test]
    judged = (np.arange(counts.max()) < counts[:, None]).astype(np.float32)
    values = per_query(torch.from_numpy(found.scores[test]), torch.tensor(grades), torch.from_numpy(judged))
    assert values["ndcg_at_10"].mean().item() == pytest.approx(0.686, abs=0.002)


@pytest.mark.parametrize("before", ["", "import jax.lax; "], ids=["not imported", "imported"])
def test_bm25_search_does_not_start_jax(before: str, tmp_path: Path) -> None:
    """The import of bm25s starts JAX, which takes most of a GPU's memory; our search imports bm25s without JAX."""
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lax.py").write_text("def top_k(scores, k):\n    print('started')\n")
    program = before + (
        "from workloads.data.retrieval.bm25 import search; found = search(['cats purr', 'dogs'], ['purr'], 1); "
        "import jax.lax; print(found.docs.tolist(), jax.lax.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    assert done.stdout == "[[0]] jax.lax\n"
