"""The catalogue: names, presence, damage, download, fingerprint; light to import."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from workloads.data import (
    DATASETS,
    DataError,
    Dataset,
    DataUnreachable,
    SourceFile,
    check,
    dataset,
    download,
    fetch,
    fingerprint,
    verify,
)
from workloads.data.movielens import read_ml_100k

FILES = {
    "100k_train.csv": b"user,item,rating\r\n0,1,3\r\n0,2,4\r\n1,1,5\r\n",
    "100k_test.csv": b"user,item,rating\r\n0,5,3\r\n1,6,4\r\n",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A web server on this machine whose paths are file names, and ways to fail."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            way, _, name = self.path.strip("/").rpartition("/")
            self.server.asked.append(name)
            body = FILES[name]
            if way == "absent":
                self.send_error(404)
                return
            if way == "hang":
                time.sleep(1.0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write({"cut": body[:-9], "other": body[::-1]}.get(way, body))

        def log_message(self, *_: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.asked = []
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    yield web
    web.shutdown()
    web.server_close()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset of two small files, in the catalogue for one test."""
    return register(monkeypatch, "http://127.0.0.1:9")


def register(monkeypatch: pytest.MonkeyPatch, url: str) -> Dataset:
    sources = tuple(
        SourceFile(name, len(content), hashlib.sha256(content).hexdigest(), f"{url}/{name}")
        for name, content in FILES.items()
    )
    known = Dataset("tiny", "two small files", "interactions", "1", read_ml_100k, sources)
    monkeypatch.setitem(DATASETS, "tiny", known)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return known


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder.parent


def test_the_catalogue_is_complete() -> None:
    assert {"synthetic", "ml-100k"} <= set(DATASETS)
    for name, known in DATASETS.items():
        assert known.name == name
        assert known.summary
        for source in known.files:
            assert len(source.sha256) == 64
            assert source.url.startswith("https://")
            assert source.url.endswith(source.path)


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(DataError, match=r"got 'ml-10k'; expected one of .*synthetic.*Did you mean 'ml-100k'\?$"):
        dataset("ml-10k")
    with pytest.raises(DataError, match=r"got 'zzz'; expected one of"):
        dataset("zzz")


def test_a_missing_file_says_where_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check("ml-100k", tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'ml-100k' / '100k_train.csv'}: ")
    assert "orchestrator data fetch ml-100k" in message
    assert "ORCHESTRATOR_DATA" in message
    assert f"searched: {tmp_path}" in message
    assert len(verify("ml-100k", tmp_path)) == 2
    with pytest.raises(DataError, match="missing"):
        fingerprint("ml-100k", tmp_path)


def test_a_missing_file_is_told_without_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import workloads.data as data\n"
        "try: data.check('ml-100k', Path(sys.argv[1]))\n"
        "except data.DataError: pass\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'torch', 'urllib.request'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_intact_files_pass(tiny: Dataset, root: Path) -> None:
    check("tiny", root)
    assert verify("tiny", root) == []


def test_generated_data_needs_no_files(tmp_path: Path) -> None:
    check("synthetic", tmp_path)
    assert verify("synthetic", tmp_path) == fetch("synthetic", tmp_path) == []


def test_damage_is_named_by_line_where_there_is_one(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_train.csv"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"line 4: the line is truncated: got '1,1'.*data fetch tiny"):
        check("tiny", root)
    (problem,) = verify("tiny", root)
    assert "line 4" in problem


def test_damage_that_parses_is_named_by_checksum(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_test.csv"
    changed = path.read_bytes().replace(b"1,6,4", b"1,6,5")
    path.write_bytes(changed)
    with pytest.raises(DataError) as caught:
        check("tiny", root)
    message = str(caught.value)
    assert f"{path}: the checksum differs" in message
    assert hashlib.sha256(changed).hexdigest() in message
    assert tiny.files[1].sha256 in message


def test_an_overlap_is_named_though_the_other_file_is_the_damaged_one(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_train.csv"
    path.write_bytes(path.read_bytes() + b"1,6,4\r\n")
    with pytest.raises(DataError, match=r"line 3: a pair of the test part is also in the train part.*line 5 of"):
        check("tiny", root)


def test_every_damaged_file_is_listed(tiny: Dataset, root: Path) -> None:
    (root / "tiny" / "100k_train.csv").write_bytes(b"user,item\r\n")
    (root / "tiny" / "100k_test.csv").unlink()
    (root / "tiny" / "100k_test.csv").mkdir()
    problems = verify("tiny", root)
    assert len(problems) == 2
    assert "checksum" in problems[0]
    assert "can not be read (Is a directory)" in problems[1]


def test_the_fingerprint_is_that_of_content_and_version(
    tiny: Dataset, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint("tiny", root)
    moved = shutil.copytree(root, tmp_path / "elsewhere")
    assert fingerprint("tiny", moved) == before
    (moved / "tiny" / "100k_test.csv").write_bytes(FILES["100k_train.csv"])
    assert fingerprint("tiny", moved) != before
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(tiny, version="2"))
    assert fingerprint("tiny", root) != before


class TestFetch:
    @pytest.fixture
    def url(self, server: ThreadingHTTPServer) -> str:
        return f"http://127.0.0.1:{server.server_port}"

    def test_brings_what_is_missing_or_damaged(
        self, server: ThreadingHTTPServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            ("absent", DataUnreachable, "can not be downloaded.*Not Found"),
            ("cut", DataUnreachable, "broke off 9 bytes before its end"),
            ("hang", DataUnreachable, "can not be downloaded.*timed out"),
            ("other", DataError, "is not the file of the dataset.*sha256 .* expected .* sha256"),
        ],
    )
    def test_a_failure_changes_nothing(
        self,
        url: str,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        way: str,
        kind: type[DataError],
        message: str,
    ) -> None:
        monkeypatch.setattr(download, "_TIMEOUT_S", 0.3)
        register(monkeypatch, f"{url}/{way}")
        train = root / "tiny" / "100k_train.csv"
        train.write_bytes(b"damaged")
        with pytest.raises(DataError, match=message) as caught:
            fetch("tiny", root)
        assert type(caught.value) is kind
        assert train.read_bytes() == b"damaged"
        assert {path.name for path in train.parent.iterdir()} == {*FILES, ".fetch.lock"}

    def test_no_network(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as free:  # bound and not listening: refuses
            free.bind(("127.0.0.1", 0))
            register(monkeypatch, f"http://127.0.0.1:{free.getsockname()[1]}")
            with pytest.raises(DataUnreachable, match=r"refused.*copy the dataset's files to"):
                fetch("tiny", tmp_path / "new")

    def test_a_root_that_can_not_be_written(self, tiny: Dataset, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(DataError, match=r"can not be written.*ORCHESTRATOR_DATA"):
            fetch("tiny", tmp_path / "file")
