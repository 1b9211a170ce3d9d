"""Fetching of missing or damaged files from their source, verified before a file is replaced."""

from __future__ import annotations

import dataclasses
import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.tiny_dataset import FILES, lay_out, register
from tests.support.waiting import HANG_SECONDS
from tests.support.web import QuietHandler, serving
from workloads.data import DATASETS, DataError, DataUnreachable, SourceFile, check, check_readable, download, fetch


@pytest.fixture
def server() -> Iterator[Any]:
    """The handler of a local web server; a path is a file name, after a way to fail such as ``cut`` if one is given."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"tiny/{name}", content)

    class Handler(QuietHandler):
        url: ClassVar[str] = ""
        asked: ClassVar[list[str]] = []
        over: ClassVar[threading.Event] = threading.Event()
        archive: ClassVar[bytes] = packed.getvalue()

        def get(self) -> None:
            way, _, name = self.path.strip("/").rpartition("/")
            self.asked.append(name)
            body = self.archive if name == "all.zip" else FILES[name]
            if way == "absent":
                self.send_error(404)
                return
            if way == "hang":
                self.over.wait()
            sent = {"cut": body[:-9], "other": body[::-1]}.get(way, body)
            self.respond(200, sent, **{"Content-Length": str(len(body))})

    with serving(Handler) as Handler.url:
        yield Handler
        Handler.over.set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay_out(tmp_path / "data")


@pytest.fixture
def url(server: Any) -> str:
    return server.url


def test_fetch_downloads_only_missing_or_damaged_files(
    server: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, url)
    root, train = tmp_path / "new", tmp_path / "new" / "tiny" / "100k_train.csv"
    assert [path.name for path in fetch("tiny", root)] == list(FILES)
    check("tiny", root)
    assert fetch("tiny", root) == []
    train.write_bytes(b"damaged")
    assert fetch("tiny", root) == [train]
    check("tiny", root)
    assert server.asked == [*FILES, "100k_train.csv"]


@pytest.mark.parametrize(
    ("way", "kind", "message"),
    [
        ("absent", DataUnreachable, "cannot be downloaded.*Not Found"),
        ("cut", DataUnreachable, "broke off 9 bytes before its end"),
        ("hang", DataUnreachable, "cannot be downloaded.*timed out"),
        ("other", DataError, "is not the dataset's.*sha256 .* expected .* sha256"),
    ],
)
def test_failed_download_leaves_files_unchanged(
    url: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    kind: type[DataError],
    message: str,
) -> None:
    monkeypatch.setattr(download, "_TIMEOUT_S", 0.3 if way == "hang" else HANG_SECONDS)
    register(monkeypatch, f"{url}/{way}")
    train = root / "tiny" / "100k_train.csv"
    train.write_bytes(b"damaged")
    with pytest.raises(DataError, match=message) as caught:
        fetch("tiny", root)
    assert type(caught.value) is kind
    assert train.read_bytes() == b"damaged"
    assert {path.name for path in train.parent.iterdir()} == {*FILES, ".fetch.lock"}


def test_files_are_fetched_from_members_of_a_zip_archive(
    server: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = register(monkeypatch, url)
    files = tuple(
        dataclasses.replace(source, url=f"{url}/all.zip", member=f"tiny/{source.path}") for source in known.files
    )
    extras = (SourceFile("notes.txt", url=f"{url}/all.zip", member="tiny/notes.txt"),)
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(known, files=files))
    assert [path.read_bytes() for path in fetch("tiny", tmp_path)] == list(FILES.values())
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(known, extras=extras))
    with pytest.raises(DataError, match=r"not the dataset's archive: .*notes.txt.*expected a ZIP archive with"):
        fetch("tiny", tmp_path)
    server.archive = b"no archive"
    with pytest.raises(DataError, match="not the dataset's archive"):
        fetch("tiny", tmp_path)
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == {*FILES, ".fetch.lock"}


def test_files_without_checksum_are_fetched_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = register(monkeypatch, url)
    files = tuple(SourceFile(source.path, url=source.url) for source in known.files)
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(known, files=files))
    assert len(fetch("tiny", tmp_path)) == 2
    assert fetch("tiny", tmp_path) == []
    check_readable("tiny", tmp_path)


def test_refused_connection_raises_data_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:  # bound but not listening: connections are refused
        free.bind(("127.0.0.1", 0))
        register(monkeypatch, f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(DataUnreachable, match=r"refused.*copy the dataset's files to"):
            fetch("tiny", tmp_path / "new")


def test_unwritable_data_root_raises_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "http://127.0.0.1:9")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written.*ORCHESTRATOR_DATA"):
        fetch("tiny", tmp_path / "file")
