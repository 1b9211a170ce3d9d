"""``orchestrator index``: embed again, delete, add, compact and search, a kill in the middle, and bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.errors import DONE, USAGE
from orchestrator.registry import live_index, versions
from orchestrator.registry import models as registry
from orchestrator.registry.live_index import Registered
from orchestrator.storage.settings import Settings, resolve
from tests.support.commands import Command, typed
from tests.support.registered import register
from tests.support.stores import copy_store
from tests.unit.workloads.lifelong.test_conformance import SMALL
from workloads.lifelong.live_index import LiveIndex

QUERIES = ["w1 w2 w3", "w4 w5"]
Call = Callable[..., str]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Iterator[Settings]:
    """Two models of lifelong, one with its index in files, and a bi-encoder."""
    home = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("ORCHESTRATOR_HOME", str(home))
        patch.setenv("ORCHESTRATOR_CACHE", str(home / "cache"))
        resolved = resolve({"tracking": f"sqlite:///{copy_store(initialised_store, home)}"})
        register(resolved, home / "search", "search", "lifelong", SMALL, epochs=2)
        register(resolved, home / "files", "files", "lifelong", {**SMALL, "index": str(home / "rows")}, epochs=2)
        register(resolved, home / "sts", "sts", "bi_encoder", {"encoder": "tiny", "max_length": 24, "batch_size": 160})
        yield resolved


@pytest.fixture
def call(settings: Settings, tmp_path: Path) -> Call:
    """A function that calls ``index`` for ``tmp_path / "live"`` and returns the output, or the error message."""

    def call(model: str, *words: str, code: int = DONE, folder: Path = tmp_path / "live") -> str:
        done = typed(tmp_path, "index", model, "--to", str(folder), *words, "--tracking", str(settings.tracking))
        assert done.returncode == code, done.stderr
        assert code == DONE or done.stderr.count("\n") == 1
        return done.stdout if code == DONE else done.stderr

    return call


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    """Write columns to a file and return its path."""

    def table(**columns: list[str]) -> str:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
        pd.DataFrame(columns).to_csv(file, index=False)
        return str(file)

    return table


def found(text: str) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in text.splitlines()])


@pytest.mark.slow
def test_index_is_searchable_after_reembedding_changes_and_compaction(
    settings: Settings, call: Call, table: Callable[..., str], tmp_path: Path
) -> None:
    queries = table(query=[*QUERIES, " "])
    search = ("--search", queries, "--k", "5")
    said = call("search/1", "--embed-again", "sts/1", "--share", "0.1", "--batch", "7")
    index = LiveIndex(tmp_path / "live")
    (session,) = [one["session"] for one in index.models if one["version"] == "sts/1"]
    count = len(index)
    assert len(index.docs(session)) == round(0.1 * count)
    assert said.startswith(f"Copied the index of search/1: {count} documents")
    assert f"{round(0.1 * count)} by sts/1" in said.splitlines()[-1]
    listed = found(call("search/1", *search))
    assert listed["rank"].tolist() == [1, 2, 3, 4, 5] * 2
    gone = listed["document"][0]
    other = listed["document"][1]

    call("sts/1", "--delete", table(document=[gone]), "--add", table(document=["mine", other], text=QUERIES))
    listed = found(call("sts/1", *search))
    assert gone not in set(listed["document"])
    assert [listed["document"][0], listed["document"][5]] == ["mine", other], "embedded by the last model"
    said = call("search/1", "--embed-again", "sts/1", "--compact")
    assert said.endswith(f"{tmp_path / 'live'}: {count} documents, {count} by sts/1\n")
    assert len(list((tmp_path / "live").glob("rows-*"))) == 1
    call("sts/1", *search, "--output", str(tmp_path / "found.parquet"))
    listed = pd.read_parquet(tmp_path / "found.parquet")
    index.refresh()
    sts, base = (Registered(settings, versions.find(settings, name)) for name in ("sts/1", "search/1"))
    scores = (sts.queries(QUERIES) @ sts.documents([text for _, text in index.texts.values()]).T).numpy()
    np.testing.assert_allclose(listed["score"][[0, 5]], scores.max(1), atol=1e-5)
    ids = dict(enumerate(base.predictor.doc_ids)) | {doc: name for doc, (name, _) in index.texts.items()}
    rows = sts.queries(QUERIES).numpy() @ index.vectors().T
    best = [[ids[doc] for doc in index.docs()[np.argsort(-row, kind="stable")[:5]].tolist()] for row in rows]
    assert listed["document"].tolist() == [name for names in best for name in names]
    assert call("sts/1").endswith("by sts/1\n"), "without a change it prints the state"


def test_an_index_in_files_is_copied_and_searched_as_the_model_does(
    settings: Settings, call: Call, table: Callable[..., str], tmp_path: Path
) -> None:
    """The files of the run are unchanged, and the model can also read the copy."""
    loaded = registry.load(settings, "models:/files/1")
    frame = pd.DataFrame({"query": QUERIES})
    expected = loaded.predict(frame, params={"k": 8})
    gone = expected["document"][0]
    call("files/1", "--delete", table(document=[gone]))
    listed = found(call("files/1", "--search", table(query=QUERIES), "--k", "7"))
    assert listed["document"][:7].tolist() == expected["document"][1:8].tolist()
    of_copy = loaded.predict(frame, params={"k": 7, "index": str(tmp_path / "live")})
    assert of_copy["document"].tolist() == listed["document"].tolist()
    np.testing.assert_allclose(of_copy["score"], listed["score"], atol=1e-6)
    pd.testing.assert_frame_equal(loaded.predict(frame, params={"k": 8}), expected)
    call("files/1", "--embed-again", "files/1")
    index = LiveIndex(tmp_path / "live")
    assert index.sessions == [1], "rows of the earlier session are embedded again"
    assert loaded.predict(frame, params={"k": 7, "index": str(tmp_path / "live")})["rank"].max() == 7


@pytest.mark.slow
def test_invalid_index_options_and_inputs_exit_with_usage_error(
    call: Call, table: Callable[..., str], settings: Settings, tmp_path: Path
) -> None:
    again = ("--embed-again", "sts/1")
    live = tmp_path / "live"
    for words, parts in (
        (("search/1", "--compact"), (f"There is no index in {live}", "Begin one with --embed-again, --add or")),
        (("search/1",), ("There is no index in",)),
        (("sts/1", *again), ("sts/1 has no index of documents", "got a model of bi_encoder", "models of lifelong")),
        (("search/7", *again), ("Unknown version of search: got '7'; allowed: 1",)),
        (("search/1", "--embed-again", "none@latest"), ("none",)),
        (("search/1", *again, "--share", "0"), ("--share is not valid: got 0; allowed: above 0, at most 1",)),
        (("search/1", *again, "--order", "best"), ("--order is not valid: got best; allowed: newest, oldest, random",)),
        (("search/1", "--share", "0.1"), ("--share needs --embed-again",)),
        (("search/1", "--delete", "none.csv"), ("The input none.csv does not exist",)),
        (("search/1", "--delete", table(document=["x", "y"])), ("that the index does not know (2): got", "x, y")),
        (("search/1", "--add", table(document=["x", "x"], text=["a", "b"])), ("occurs twice: got x",)),
        (("search/1", "--add", table(document=["x"], text=[" "])), ("has no text: got x",)),
        (("search/1", "--add", table(document=["x", "y"], text=["a", ""])), ("has no text: got y",)),
        (("search/1", "--add", table(document=["x", ""], text=["a", "b"])), ("has no name: got b",)),
        (("search/1", "--add", table(document=["x"])), ("lacks the column text",)),
    ):
        said = call(*words, code=USAGE)
        assert all(part in said for part in parts), said
    assert not live.exists() or not list(live.glob("*.json")), "no index may be created"
    call("search/1", "--add", table(document=["x"], text=["w1"]))
    assert "is not of files/1: got one of search/1" in call("files/1", "--compact", code=USAGE)
    before = (live / "index.json").read_text()
    queries = table(query=["w1"])
    for words, part in (
        (("--search", "none.csv"), "The input none.csv does not exist"),
        (("--search", queries, "--output", str(tmp_path / "none" / "found.csv")), "The folder of the output"),
        (("--search", queries, "--output", queries), "is the input, which it would replace"),
        (("--search", queries, "--output", "found.txt"), "has no known format"),
    ):
        assert part in call("search/1", "--add", table(document=["y"], text=["w2"]), *words, code=USAGE)
    assert (live / "index.json").read_text() == before, "the index is unchanged"
    call("search/1", "--search", table(query=[" "], other=["a"]), "--output", str(tmp_path / "none.parquet"))
    assert list(pd.read_parquet(tmp_path / "none.parquet")) == ["query", "rank", "document", "score"]
    listed = call("search/1", "--search", table(query=["w1", ""], other=["", "a"])).splitlines()
    assert {json.loads(line)["query"] for line in listed} == {"w1"}, "a query without text ranks nothing"
    assert "--k is not valid: got 0" in call("search/1", "--search", table(query=["a"]), "--k", "0", code=USAGE)
    of_run = Path(Registered(settings, versions.find(settings, "files/1")).config["lineage"]["index"])
    assert "is of another format" in call("files/1", "--compact", code=USAGE, folder=of_run)


def test_index_created_concurrently_by_another_process_is_updated(
    settings: Settings, table: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "live"
    make, said = LiveIndex.of_model, list[str]()

    def overtaken(*args: Any) -> LiveIndex:
        make(*args)
        return make(*args)

    monkeypatch.setattr(LiveIndex, "of_model", overtaken)
    live_index.run(settings, "search/1", live_index.Request(live, add=table(document=["x"], text=["w1"])), said.append)
    assert said[0] == "Added 1 documents and changed 0, embedded by search/1"


@pytest.mark.faults
def test_killed_reembedding_resumes_without_losing_documents(
    settings: Settings, call: Call, table: Callable[..., str], tmp_path: Path
) -> None:
    """SIGKILL after some batches, twice; searches in between find every document except the deleted one."""
    queries = table(query=QUERIES)
    call("search/1", "--add", table(document=["mine"], text=["w1"]))
    gone = found(call("search/1", "--search", queries))["document"][0]
    call("search/1", "--delete", table(document=[gone]))
    index = LiveIndex(tmp_path / "live")
    count = len(index)
    words = ("index", "search/1", "--to", str(tmp_path / "live"), "--embed-again", "sts/1", "--batch", "1")
    for _ in range(2):
        stored = written(index)
        command = Command(Path(os.environ["ORCHESTRATOR_HOME"]), *words, "--tracking", str(settings.tracking))
        command.until(lambda stored=stored: written(index) > stored + 40)
        listed = found(call("search/1", "--search", queries, "--k", str(count + 1)))
        command.kill()
        assert stored + 40 < written(index) < count
        for text in (*QUERIES,):
            names = listed["document"][listed["query"] == text]
            assert names.nunique() == len(names) == count
            assert gone not in set(names)
    stored = written(index)
    assert f"{count - stored - 100} documents left" in call("search/1", *words[4:6], "--batch", "100")
    assert written(index) == count
    assert list(index.texts.values()) == [("mine", "w1")]


def written(index: LiveIndex) -> int:
    """The number of documents embedded again so far."""
    index.refresh()
    return sum(len(index.docs(one["session"])) for one in index.models if one["version"] == "sts/1")
