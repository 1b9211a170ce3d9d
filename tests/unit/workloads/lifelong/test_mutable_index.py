"""The mutable index: last rows, deletions, repeated embedding, compaction, and a kill before every write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workloads.data.errors import DataError
from workloads.encoders.search import exact_topk
from workloads.lifelong import mutable_index
from workloads.lifelong.index import MANIFEST, Index
from workloads.lifelong.mutable_index import MutableIndex
from workloads.lifelong.predictor import _open

DIM = 4
COUNT = 23


def embedded(model: int) -> Callable[[np.ndarray], np.ndarray]:
    """A model whose vector of a document depends on the model's number and the document alone."""

    def embed(docs: np.ndarray) -> np.ndarray:
        rows = [np.random.Generator(np.random.PCG64([model, doc])).standard_normal(DIM) for doc in docs.tolist()]
        return np.array(rows, np.float32).reshape(len(docs), DIM)

    return embed


def filled(folder: Path) -> MutableIndex:
    index = MutableIndex.create(folder, "ours", DIM)
    for docs in np.array_split(np.arange(COUNT), 3):
        index.put(0, docs, embedded(0)(docs))
    return index


def rows_of(index: MutableIndex) -> dict[int, tuple[int, tuple[float, ...]]]:
    """Each document's model and vector. Fails if a document has two rows."""
    rows: dict[int, tuple[int, tuple[float, ...]]] = {}
    for session in index.sessions:
        for doc, vector in zip(index.docs(session).tolist(), index.vectors(session).tolist()):
            assert doc not in rows
            rows[doc] = (session, tuple(vector))
    assert len(index) == len(rows)
    return rows


def by(model: int, docs: Any) -> dict[int, tuple[int, tuple[float, ...]]]:
    return {doc: (model, tuple(embedded(model)(np.array([doc]))[0].tolist())) for doc in docs}


def searched(index: MutableIndex) -> np.ndarray:
    """Each query's documents over the rows of all models, best first."""
    queries = torch.from_numpy(embedded(9)(np.arange(5)))
    return index.docs()[exact_topk(queries, index.blocks(), len(index))[1].numpy()]


def test_last_row_of_a_document_is_used_and_deleted_documents_are_not_found(tmp_path: Path) -> None:
    index = filled(tmp_path)
    index.put(1, np.array([30, 4]), embedded(1)(np.array([30, 4])))
    index.delete(np.array([5, 30, 99]))
    expected = {**by(0, range(COUNT)), **by(1, [4])}
    del expected[5]
    assert rows_of(index) == expected
    assert not np.isin(searched(index), [5, 30]).any()
    index.put(2, np.array([5]), embedded(2)(np.array([5])))  # the deleted document is added again
    assert rows_of(index) == {**expected, **by(2, [5])}
    assert rows_of(MutableIndex(tmp_path)) == rows_of(index)


def test_compacted_index_equals_an_index_built_at_once(tmp_path: Path) -> None:
    index = filled(tmp_path / "changed")
    index.delete(np.array([7]))
    assert list(index.embed_again(1, embedded(1), np.array([3, 7, 20, 1]), batch=2)) == [1, 0]
    index.compact()
    at_once = MutableIndex.create(tmp_path / "at_once", "ours", DIM)
    old = np.setdiff1d(np.arange(COUNT), [1, 3, 7, 20])
    for model, docs in ((0, old), (1, np.array([1, 3, 20]))):
        at_once.put(model, docs, embedded(model)(docs))
    np.testing.assert_array_equal(index.docs(), at_once.docs())
    np.testing.assert_array_equal(index.vectors(), at_once.vectors())
    np.testing.assert_array_equal(searched(index), searched(at_once))
    crcs = [
        [line["crc32"] for line in json.loads((one.folder / MANIFEST).read_text())["segments"]]
        for one in (index, at_once)
    ]
    assert crcs[0] == crcs[1]
    assert len(list(index.folder.glob("*.arrow"))) == 2


def test_a_change_while_a_batch_is_embedded_is_kept(tmp_path: Path) -> None:
    """A document deleted during the batch stays deleted; one changed during the batch is embedded again."""
    index = filled(tmp_path)
    other = MutableIndex(tmp_path)
    calls: list[int] = []

    def embed(docs: np.ndarray) -> np.ndarray:
        calls.append(len(docs))
        if len(calls) == 1:
            other.delete(np.array([1]))
            other.put(0, np.array([2]), embedded(7)(np.array([2])))
        return embedded(1)(docs) if len(calls) == 1 else embedded(8)(docs)

    for _ in index.embed_again(1, embed, batch=COUNT):
        pass
    changed = (1, tuple(embedded(8)(np.array([2]))[0].tolist()))
    assert rows_of(index) == {**by(1, set(range(COUNT)) - {1}), 2: changed}
    assert calls == [COUNT, 1]


def test_reader_sees_consistent_rows_during_embedding_and_compaction(tmp_path: Path) -> None:
    index = filled(tmp_path)
    reader = MutableIndex(tmp_path)
    for left in index.embed_again(1, embedded(1), batch=5):
        before = rows_of(reader)
        index.compact()
        assert rows_of(reader) == before  # the reader's files are deleted, but still mapped
        reader.refresh()
        assert rows_of(reader) == {**by(0, range(COUNT - left, COUNT)), **by(1, range(COUNT - left))}
    assert index.sessions == [1]


class Killed(BaseException):
    """Raised in place of a storage operation, as if the process was killed."""


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Raise before the n-th storage operation and all later ones, since a dead process performs no more of them."""
    done: list[str] = []
    limit = [10**9]

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not set("wax") & set(str((*args, *kwargs.values())[1:2])):
                return original(*args, **kwargs)
            if len(done) >= limit[0]:
                raise Killed
            done.append(name)
            return original(*args, **kwargs)

        return call

    for name in ("open", "replace", "unlink"):
        monkeypatch.setattr(Path, name, watched(name, getattr(Path, name)))
    monkeypatch.setattr(os, "fsync", watched("fsync", os.fsync))

    def start(count: int) -> list[str]:
        done.clear()
        limit[0] = count
        return done

    return start


def work(index: MutableIndex, text: int, stored: set[int]) -> None:
    """The work that is repeated after each kill: a change, a deletion, embedding again, compaction.

    ``stored`` collects the documents that have been embedded again.
    """
    docs = np.array([2, 40])
    index.put(0, docs, embedded(text)(docs))
    index.delete(np.array([3, 11]))
    for _ in index.embed_again(1, embedded(1), batch=9):
        stored.update(index.docs(1).tolist())
        assert not np.isin(searched(index), [3, 11]).any()
    index.compact()


@pytest.mark.slow
def test_kill_before_any_storage_operation_loses_no_stored_row(
    tmp_path: Path, kill: Callable[[int], list[str]]
) -> None:
    done = kill(10**9)
    index = filled(tmp_path / "whole")
    done.clear()
    work(index, 5, set())
    expected = by(1, {*range(COUNT), 40} - {3, 11})
    assert rows_of(index) == expected
    operations = done.copy()
    assert {"open", "fsync", "replace", "unlink"} <= set(operations)
    for count in range(len(operations)):
        kill(10**9)
        folder = tmp_path / str(count)
        index = filled(folder)
        kill(count)
        stored: set[int] = set()
        with pytest.raises(Killed):
            work(index, 5, stored)
        kill(10**9)
        again = MutableIndex(folder)
        rows = rows_of(again)
        changed = rows.keys() & {40}
        deleted = not rows.keys() & {3, 11}
        assert rows.keys() == {*range(COUNT), *changed} - ({3, 11} if deleted else set())
        assert all(row in (by(0, [doc])[doc], by(1, [doc])[doc], *by_text(5, doc)) for doc, row in rows.items())
        assert stored <= set(again.docs(1).tolist())
        assert not stored or (changed and deleted)
        work(again, 5, set())
        assert rows_of(again) == expected
        assert {file.name for file in folder.iterdir()} == {
            ".lock", MANIFEST, *(line["file"] for line in json.loads((folder / MANIFEST).read_text())["segments"]),
        }  # fmt: skip


def by_text(text: int, doc: int) -> list[tuple[int, tuple[float, ...]]]:
    """The row of a changed document, embedded by the old model."""
    return [(0, tuple(embedded(text)(np.array([doc]))[0].tolist()))]


def test_copy_of_an_append_only_index_is_changed_and_read_by_its_models(tmp_path: Path) -> None:
    old = Index("ours", DIM, True, tmp_path / "old")
    for session in (0, 1):
        docs = np.arange(3) + 3 * session
        old.append(session, docs, embedded(session)(docs))
    index = MutableIndex.copy_of(tmp_path / "old", tmp_path / "new")
    assert rows_of(index) == {**by(0, range(3)), **by(1, range(3, 6))}
    index.delete(np.array([4]))
    index.put(1, np.array([0]), embedded(1)(np.array([0])))
    lineage = {"id": "ours", "session": 1, "compatible": True}
    expected = {**by(0, [1, 2]), **by(1, [0, 3, 5])}
    for _ in range(2):
        segments = _open(index.folder, lineage)
        read = {doc: tuple(row) for docs, rows in segments for doc, row in zip(docs.tolist(), rows.tolist())}
        assert read == {doc: vector for doc, (_, vector) in expected.items()}
        assert sum(len(docs) for docs, _ in segments) == 5
        index.compact()
    assert len(old) == 6
    assert len(list((tmp_path / "old").glob("*.arrow"))) == 2


def test_invalid_rows_and_damaged_or_missing_index_files_are_refused(tmp_path: Path) -> None:
    index = filled(tmp_path / "index")
    with pytest.raises(ValueError, match="occurs twice"):
        index.put(1, np.array([1, 1]), np.zeros((2, DIM), np.float32))
    with pytest.raises(ValueError, match="have shape"):
        index.put(1, np.array([1]), np.zeros((1, DIM + 1), np.float32))
    with pytest.raises(FileExistsError, match="has an index already"):
        MutableIndex.create(tmp_path / "index", "ours", DIM)
    with pytest.raises(DataError, match="there is no index"):
        MutableIndex(tmp_path / "none")
    manifest = tmp_path / "index" / "index.json"
    text = manifest.read_text()
    for damaged in (text[:-1], "[]", "{}"):
        manifest.write_text(damaged)
        with pytest.raises(DataError, match=r"index\.json: the index file is damaged"):
            MutableIndex(tmp_path / "index")
    manifest.write_text(text)
    next((tmp_path / "index").glob("*.arrow")).unlink()
    with pytest.raises(DataError, match="the index file is missing"):
        MutableIndex(tmp_path / "index")


SCRIPT = """
import sys, time
from pathlib import Path
from tests.unit.workloads.lifelong.test_mutable_index import embedded
from workloads.lifelong.mutable_index import MutableIndex

def embed(docs):
    time.sleep(0.03)
    return embedded(1)(docs)

index = MutableIndex(Path(sys.argv[1]))
print("open", flush=True)
for left in index.embed_again(1, embed, batch=5):
    if left <= int(sys.argv[2]):
        time.sleep(3600)  # until it is killed, however late
index.compact()
"""


@pytest.mark.faults
def test_a_killed_process_loses_no_batch(tmp_path: Path) -> None:
    """The process is killed after some batches and started again, until it ends by itself."""
    index = MutableIndex.create(tmp_path, "ours", DIM)
    docs = np.arange(240)
    index.put(0, docs, embedded(0)(docs))
    deleted = np.arange(0, 240, 7)
    random = np.random.default_rng(0)
    stored = kills = 0
    waits_at = iter((120, 60))  # documents left: the first two cannot end before they are killed
    while index.sessions != [1]:
        words = [sys.executable, "-c", SCRIPT, str(tmp_path), str(next(waits_at, -1))]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        if kills == 0:
            index.delete(deleted)
        seconds = random.uniform(0.3, 0.8)
        until = time.monotonic() + seconds
        while time.monotonic() < until and process.poll() is None:
            index.refresh()
            assert len(rows_of(index)) == len(docs) - len(deleted)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        index.refresh()
        assert len(index.docs(1)) >= stored
        stored = len(index.docs(1))
    assert kills > 1
    index.compact()
    assert rows_of(index) == by(1, np.setdiff1d(docs, deleted).tolist())


def test_embedding_again_does_not_rebuild_the_order_of_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LastEntries, which sorts the documents, is not constructed again between batches."""
    docs = np.arange(40)
    index = MutableIndex.create(tmp_path / "index", "lineage", DIM, rows=[(0, docs, embedded(0)(docs))])
    sorts = []
    monkeypatch.setattr(mutable_index, "LastEntries", lambda entries: sorts.append(entries))
    assert list(index.embed_again(1, embedded(1), batch=4)) == list(range(36, -1, -4))
    assert (len(sorts), index.sessions) == (0, [1])
