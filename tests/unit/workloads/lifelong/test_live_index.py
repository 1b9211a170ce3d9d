"""The index of registered models: numbers of models, texts, the choice of documents, search in two spaces."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workloads.data.errors import DataError
from workloads.lifelong import predictor
from workloads.lifelong.encoder_change import standardised
from workloads.lifelong.live_index import FOREIGN, REFERENCE, LiveIndex
from workloads.lifelong.predictor import _open

LINEAGE = {"id": "ours", "session": 2, "compatible": True}
COUNT = 300


class Model:
    """The vector of a text depends on the text and the model alone."""

    def __init__(self, key: int, dim: int) -> None:
        self.key = key
        self.dim = dim

    def documents(self, texts: Sequence[str]) -> torch.Tensor:
        seeds = [[self.key, zlib.crc32(text.encode())] for text in texts]
        rows = [np.random.default_rng(seed).standard_normal(self.dim) for seed in seeds]
        vectors = torch.from_numpy(np.array(rows, np.float32).reshape(len(texts), self.dim))
        return torch.nn.functional.normalize(vectors)

    queries = documents


OLD = Model(0, 4)
NEW = Model(1, 6)


def of(docs: np.ndarray) -> list[str]:
    """Texts of documents of the collection."""
    return [f"text {doc}" for doc in docs.tolist()]


def begun(folder: Path) -> LiveIndex:
    """An index with rows of sessions 0, 1 and 2, all by one model."""
    parts = np.array_split(np.arange(COUNT), 3)
    rows = [(session, docs, OLD.documents(of(docs)).numpy()) for session, docs in enumerate(parts)]
    return LiveIndex.of_model(folder, LINEAGE, rows, OLD.dim, "search/3", "r1")


def test_models_of_another_lineage_join_under_separate_session_numbers(tmp_path: Path) -> None:
    index = begun(tmp_path)
    assert index.join("search/3", "r1", 4) == 2
    assert index.join("search/5", "r1", 4, {"id": "ours", "session": 4}) == 4
    assert index.join("search/4", "r1", 4, {"id": "ours", "session": 3}) == FOREIGN, "session 3 cannot read rows of 4"
    assert index.join("other/1", "r2", 6, {"id": "other", "session": 9}) == FOREIGN + 1
    assert index.join("other/1", "r2", 6) == FOREIGN + 1
    assert [index.reader(session) for session in (0, 2, 4, FOREIGN + 1)] == [4, 4, 4, FOREIGN + 1]
    assert index.sessions == [0, 1, 2]
    list(index.embed(FOREIGN + 1, 0.1, "newest", NEW, of, 100))
    with pytest.raises(ValueError, match=r"a model of another lineage.* `orchestrator index`"):
        _open(tmp_path, {**LINEAGE, "session": 9})


def test_reader_ignores_replaced_rows_of_another_lineage(tmp_path: Path) -> None:
    index = begun(tmp_path)
    own = {**LINEAGE, "session": 2}
    before = _open(tmp_path, own)
    for model, session, number in ((NEW, index.join("other/1", "r2", 6), 1), (OLD, index.join("search/3", "r1", 4), 2)):
        list(index.embed(session, 1.0, "newest", model, of, 100))
        assert index.sessions == [session], number
    rows = [
        (doc, vector.tolist()) for docs, vectors in _open(tmp_path, own) for doc, vector in zip(docs.tolist(), vectors)
    ]
    expected = [(doc, vector.tolist()) for docs, vectors in before for doc, vector in zip(docs.tolist(), vectors)]
    assert sorted(rows) == sorted(expected)


def test_open_succeeds_if_a_compaction_runs_after_the_manifest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = begun(tmp_path)
    own = {**LINEAGE, "session": 2}
    mapped = predictor._mapped

    def late(folder: Path, segments: list[dict[str, Any]]) -> Any:
        monkeypatch.setattr(predictor, "_mapped", mapped)
        index.compact()
        return mapped(folder, segments)

    monkeypatch.setattr(predictor, "_mapped", late)
    assert sum(len(docs) for docs, _ in _open(tmp_path, own)) == COUNT


def test_embedding_a_share_again_follows_the_order_and_resumes(tmp_path: Path) -> None:
    index = begun(tmp_path)
    session = index.join("other/1", "r2", 6)
    steps = index.embed(session, 0.5, "newest", NEW, of, 40)
    assert [next(steps), next(steps)] == [110, 70]
    other = LiveIndex(tmp_path)
    assert other.docs(session).tolist() == list(range(200, 280))
    assert list(other.embed(session, 0.5, "newest", NEW, of, 40)) == [30, 0]
    assert sorted(other.docs(session).tolist()) == [*range(100, 150), *range(200, 300)], "the newest session first"
    assert len(other.to_embed(session, 0.5, "oldest")) == 0
    assert other.to_embed(session, 0.6, "oldest").tolist() == list(range(30))
    chosen = other.to_embed(session, 0.9, "random")
    assert len(set(chosen.tolist())) == 120
    assert chosen.tolist() != sorted(chosen.tolist())
    assert list(other.embed(session, 1, "oldest", NEW, of, 200)) == [0]
    assert other.sessions == [session]
    np.testing.assert_array_equal(other.vectors(session), NEW.documents(of(other.docs())).numpy())
    for share, order in ((0, "newest"), (1.1, "newest"), (0.5, "best")):
        with pytest.raises(ValueError, match=r"the share must be .* the order one of"):
            other.to_embed(session, share, order)


def test_rows_in_two_spaces_are_ranked_by_standardised_scores(tmp_path: Path) -> None:
    index = begun(tmp_path)
    queries = ["a", "b", "c"]
    scores, docs = index.search(queries, 5, {2: OLD}.__getitem__, of)
    cosines = (OLD.queries(queries) @ OLD.documents(of(np.arange(COUNT))).T).numpy()
    np.testing.assert_array_equal(docs, np.argsort(-cosines, axis=1)[:, :5])
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, docs, 1), atol=1e-6)
    session = index.join("other/1", "r2", 6)
    index.add(session, {"new": "text x"}, {f"d{doc}": doc for doc in range(COUNT)}, NEW)
    list(index.embed(session, 0.4, "random", NEW, of, 64))
    texts = [*of(np.arange(COUNT)), "text x"]
    sample = np.random.PCG64(0).random_raw(COUNT + 1).argsort(kind="stable")[:REFERENCE]
    by = {}
    for name, model in (("old", OLD), ("new", NEW)):
        all_scores = (model.queries(queries) @ model.documents(texts).T).double().numpy()
        by[name] = standardised(all_scores, all_scores[:, sample])
    again = np.isin(np.arange(COUNT + 1), index.docs(session))
    assert again.sum() == round(0.4 * (COUNT + 1))
    expected = np.where(again, by["new"], by["old"])
    scores, docs = index.search(queries, 9, {2: OLD, session: NEW}.__getitem__, of)
    np.testing.assert_array_equal(docs, np.argsort(-expected, axis=1)[:, :9])
    np.testing.assert_allclose(scores, np.take_along_axis(expected, docs, 1), atol=1e-5)


def test_added_texts_are_stored_updated_and_removed_with_their_rows(tmp_path: Path) -> None:
    index = begun(tmp_path)
    collection = {f"d{doc}": doc for doc in range(COUNT)}
    assert index.add(2, {"d7": "seven", "x": "ex"}, collection, OLD) == 1
    assert index.add(2, {"x": "ex 2", "y": "why"}, collection, OLD) == 1
    assert index.add(2, {"d7": "seven", "x": "ex"}, collection, OLD) == 0, "the repeated file is the latest change"
    assert index.texts == {7: ("d7", "seven"), COUNT: ("x", "ex"), COUNT + 1: ("y", "why")}
    session = index.join("other/1", "r2", 6)
    docs = np.array([7, 8, COUNT])
    list(index.embed_again(session, lambda part: NEW.documents(index._read(part, of)).numpy(), docs))
    np.testing.assert_array_equal(index.vectors(session), NEW.documents(["seven", "text 8", "ex"]).numpy())
    index.delete(np.array([COUNT, 9]))
    before = index.texts
    files = list(tmp_path.glob("texts-*"))
    index.compact()
    assert before.keys() - index.texts.keys() == {COUNT}
    assert LiveIndex(tmp_path).texts == index.texts
    (left,) = tmp_path.glob("texts-*")
    assert left not in files
    assert "ex" not in left.read_text()
    assert index.add(2, {"z": "zed"}, collection, OLD) == 1
    left.unlink()
    with pytest.raises(DataError, match="the file of texts is missing"):
        LiveIndex(tmp_path)
