"""From their creation, only this user has access to Ray's token, Ray's folder and the home."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cluster import connection, session_folder
from orchestrator.config import user_code
from orchestrator.console import Console
from orchestrator.errors import UserError
from orchestrator.provenance import record as provenance
from orchestrator.provenance.source import Source
from orchestrator.reproduce import recorded_run, table_report
from orchestrator.search import trusted_spaces
from orchestrator.storage import disk, records, remote
from orchestrator.storage.remote import Remote
from orchestrator.storage.settings import resolve
from orchestrator.tracking import store
from orchestrator.tracking.journal import Journal


@pytest.fixture(params=[0o022, 0o000], ids=["umask 022", "umask 000"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# Ray's token


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path at which a token is created for a user without one."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user" / ".ray" / "auth_token"


@pytest.fixture
def begin(token: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[int, int, str]]]:
    """Starts a cluster up to ``ray.init``.

    Returns the modes of the token's folder and of the token's file, and the token, at that point.
    """

    def call() -> list[tuple[int, int, str]]:
        import ray

        found = []

        def init(**_: Any) -> None:
            found.append((mode(token.parent), mode(token), token.read_text()) if token.exists() else (0, 0, ""))
            raise ConnectionError("no cluster in this test")

        monkeypatch.setattr(ray, "init", init)
        with pytest.raises(UserError, match="no cluster in this test"), connection.cluster(None):
            pass
        return found

    return call


def test_a_token_is_never_readable_by_others(umask: int, begin: Callable[[], list[tuple[int, int, str]]]) -> None:
    (folder, file, text) = begin()[0]
    assert (folder, file) == (0o700, 0o600)
    assert len(bytes.fromhex(text)) == 32
    assert begin()[0][2] == text  # also for the next cluster


def test_existing_ray_token_is_kept_and_gets_mode_0600(
    token: Path, begin: Callable[[], list[tuple[int, int, str]]]
) -> None:
    token.parent.mkdir(parents=True)
    token.write_text("mine")
    token.parent.chmod(0o755)
    token.chmod(0o644)
    assert begin() == [(0o755, 0o600, "mine")]


@pytest.mark.parametrize(
    ("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "t"), ("RAY_AUTH_TOKEN_PATH", "/elsewhere")]
)
def test_no_ray_token_is_created_if_ray_auth_is_configured(
    name: str, value: str, token: Path, begin: Callable[[], list[tuple[int, int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert begin() == [(0, 0, "")]


def test_concurrent_cluster_starts_create_one_ray_token(token: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(32):
            pool.submit(connection.make_token)
    assert len(token.read_text()) == 64
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


# Ray's files


@pytest.fixture
def begun_in(token: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Starts a cluster up to ``ray.init``; returns the folder of Ray's files at that point."""

    def call() -> Path:
        import ray

        found: list[Path] = []

        def init(**_: Any) -> None:
            found.append(Path(os.environ["RAY_TMPDIR"]))
            raise ConnectionError("no cluster in this test")

        monkeypatch.setattr(ray, "init", init)
        with pytest.raises(UserError, match="no cluster in this test"), connection.cluster(None):
            pass
        return found[0]

    return call


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, since the paths of Ray's sockets have a limit."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_folder_of_a_local_ray_cluster_has_mode_0700(
    variable: str, umask: int, begun_in: Callable[[], Path], short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray creates its own folders with mode 0777, including the folder of its sockets."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(variable, str(short))
    short.chmod(0o1777)
    for before in (None, 0o777):
        if before:
            (short / f"ray-{os.getuid()}").chmod(before)
        assert begun_in() == short / f"ray-{os.getuid()}"
        assert mode(begun_in()) == 0o700
    assert os.environ[variable] == str(short)
    assert variable == "RAY_TMPDIR" or "RAY_TMPDIR" not in os.environ


def test_ray_folder_falls_back_to_tmp_if_socket_paths_are_too_long(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = short / ("d" * (session_folder.LONGEST - len(str(short / f"ray-{os.getuid()}")) - 1))
    for usual, folder in ((fits, fits / f"ray-{os.getuid()}"), (Path(f"{fits}d"), Path("/tmp", f"ray-{os.getuid()}"))):
        monkeypatch.setenv("RAY_TMPDIR", str(usual))
        usual.mkdir()
        usual.chmod(0o755)
        assert session_folder.folder() == folder


def test_private_temporary_folder_is_used_by_ray_directly(
    begun_in: Callable[[], Path], short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(short))
    short.chmod(0o700)
    assert begun_in() == short


def test_ray_folder_that_is_a_link_or_of_another_user_is_refused(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(short))
    short.chmod(0o1777)
    (short / "mine").mkdir()
    (short / f"ray-{os.getuid()}").symlink_to(short / "mine")
    with pytest.raises(UserError, match="is not a folder of this user"), connection.cluster(None):
        pass
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (short / "ray-12345").mkdir()
    with pytest.raises(PermissionError, match="is not a folder of this user"):
        session_folder.folder()


# The home


def make_store() -> None:
    store.ensure(resolve().tracking or "", resolve().home)


def make_mirror() -> None:
    disk.check_writable(resolve({"storage": "s3://bucket/runs"}).storage)


def name_a_space() -> None:
    space = Path(__file__).with_name("strangers.py")
    trusted_spaces.trust(f"{space}:space", resolve().home)


class Empty:
    """A client of MLflow whose run has no files."""

    def list_artifacts(self, _: str) -> list[Any]:
        return []


MAKERS: dict[str, Callable[[], Any]] = {
    "storage": lambda: disk.check_writable(resolve().storage),
    "run": lambda: records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one"),
    "store": make_store,
    "mirror": make_mirror,
    "space": name_a_space,
    "report": lambda: table_report.keep({"id": "t"}, {}, "t", resolve({"tracking": "none"})),
    "record": lambda: recorded_run._download(Empty(), "id", resolve().home / "reproduced" / "id"),
}
"""The functions that may be the first to write into a home."""


def no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the store empty, since the creation of its schema takes seconds."""
    made = SimpleNamespace(engine=SimpleNamespace(dispose=lambda: None))
    stub = SimpleNamespace(SqlAlchemyStore=lambda *_: made)
    monkeypatch.setitem(sys.modules, "mlflow.store.tracking.sqlalchemy_store", stub)


@pytest.mark.parametrize("name", MAKERS)
def test_created_home_has_mode_0700(name: str, umask: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_schema(monkeypatch)
    monkeypatch.setattr(disk.remote, "location_of", lambda _: None)
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(home / "of" / "mine"))
    MAKERS[name]()
    assert mode(home / "of" / "mine") == 0o700
    assert mode(home / "of") == 0o777 & ~umask


@pytest.mark.parametrize("name", ["storage", "run", "space"])
def test_existing_home_keeps_its_mode(name: str, umask: int, home: Path) -> None:
    home.mkdir()
    home.chmod(0o775)
    MAKERS[name]()
    assert mode(home) == 0o775


FILES = ("log.txt", "record.json", "environment.json", "spec.json", "source.diff", "tracking.jsonl", "mlflow.db")
"""Files that could hold a secret that no pattern matches."""


def write_files(storage: Path) -> set[tuple[str, int]]:
    """The names and modes of a run's files in a storage, and of the store in the home."""
    folder = records.create(storage, "run", "toy", {}, "orchestrator run toy", "one").path
    Console().log_to(folder / "log.txt")
    source = Source("project", "abc", dirty=True, diff="diff --git a/x b/x\n")
    provenance.write(folder, {"experiment": {"params": {}}}, (source,))
    journal = Journal(folder / "tracking.jsonl")
    make_store()
    files = [*folder.iterdir(), *resolve().home.glob("mlflow.db")]
    modes = {(file.name, mode(file)) for file in files if file.name in FILES}
    journal.close()
    return modes


@pytest.mark.parametrize("before", [None, 0o755])
def test_files_of_a_home_have_mode_0600(
    before: int | None, umask: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_schema(monkeypatch)
    if before is not None:
        home.mkdir()
        home.chmod(before)
    assert write_files(resolve().storage) == {(name, 0o600) for name in FILES}


@pytest.mark.parametrize(("before", "expected"), [(0o755, 0o600), (0o775, 0o666)])
def test_local_copy_of_an_object_has_the_mode_of_files_in_the_home(
    before: int, expected: int, umask: int, home: Path, tmp_path: Path
) -> None:
    """Records, logs and journals of the local copy have the modes of those that are written in the home."""
    home.mkdir()
    home.chmod(before)
    team = Remote(f"file://{tmp_path / 'team'}")
    team.write("record.json", b"{}")
    file = remote.mirror_of("s3://bucket", home) / "one" / "record.json"
    team.fetch("record.json", file)
    assert mode(file) == (expected if expected == 0o600 else expected & ~umask)


def test_files_of_a_group_writable_home_follow_the_umask(
    umask: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_schema(monkeypatch)
    home.mkdir()
    home.chmod(0o775)
    assert write_files(resolve().storage) == {(name, 0o666 & ~umask) for name in FILES}


def test_files_of_a_storage_outside_the_home_follow_the_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_schema(monkeypatch)
    found = write_files(tmp_path / "team")
    assert found == {(name, 0o666 & ~umask) for name in FILES[:-1]} | {("mlflow.db", 0o600)}


def test_folder_of_a_storage_outside_the_home_follows_the_umask(umask: int, tmp_path: Path) -> None:
    disk.check_writable(tmp_path / "team" / "runs")
    assert mode(tmp_path / "team" / "runs") == 0o777 & ~umask


def test_folder_of_trusted_search_spaces_has_mode_0700(umask: int, home: Path) -> None:
    home.mkdir()
    name_a_space()
    assert mode(home / user_code.MARKS) == 0o700
