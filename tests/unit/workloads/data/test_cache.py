"""Cache folders, locks, atomic writes and stored digests."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.waiting import HANG_SECONDS
from workloads.data import cache_dir, conversion_cache, default_data_root, digests
from workloads.data.cache import file_lock, replacing
from workloads.data.digests import digest
from workloads.data.errors import CacheUnwritable

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))


def test_cache_and_data_folders_are_set_by_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCHESTRATOR_DATA", raising=False)
    assert cache_dir() == tmp_path / "cache"
    assert default_data_root() == tmp_path / "cache" / "data"
    monkeypatch.setenv("ORCHESTRATOR_DATA", "~/sets")
    assert default_data_root() == Path.home() / "sets"
    monkeypatch.setenv("ORCHESTRATOR_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "orchestrator"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "orchestrator"


def _increment(counter: Path, lock: Path, times: int) -> None:
    for _ in range(times):
        with file_lock(lock):
            value = int(counter.read_text())
            time.sleep(0.001)  # time for another process to enter, if the lock fails
            counter.write_text(str(value + 1))


@pytest.mark.slow
def test_lock_excludes_other_processes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    arguments = (counter, tmp_path / "locks" / "counter", 20)
    processes = [SPAWN.Process(target=_increment, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_SECONDS)
    assert counter.read_text() == "60"


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EROFS])
def test_read_only_cache_is_read_and_locked_but_not_written(
    refusal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = conversion_cache.cached_arrays("demo", "one", lambda: {"a": np.arange(3)})
    really = os.open

    def read_only(path: str, flags: int, *mode: int, **more: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(refusal, os.strerror(refusal))
        return really(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", read_only)
    found = conversion_cache.cached_arrays("demo", "one", lambda: pytest.fail("it was made again"))
    assert found["a"].tolist() == expected["a"].tolist()
    lock = next((tmp_path / "cache" / "demo").glob("*.lock"))
    with file_lock(lock), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(CacheUnwritable):
        conversion_cache.cached_arrays("demo", "two", dict)


def _die_while_writing(path: Path) -> None:
    with file_lock(path.with_suffix(".lock")), replacing(path) as file:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_the_old_file_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    process = SPAWN.Process(target=_die_while_writing, args=(path,))
    process.start()
    process.join(HANG_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    with file_lock(path.with_suffix(".lock")), replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "file.lock"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), replacing(tmp_path / "file") as file:
        file.writelines([b"half", None])
    assert list(tmp_path.iterdir()) == []


class TestDigest:
    @pytest.fixture
    def readings(self, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """The files whose content was read."""
        read: list[Path] = []
        really = digests.sha256
        monkeypatch.setattr(digests, "sha256", lambda path: read.append(path) or really(path))
        monkeypatch.setattr(digests, "_SETTLED_NS", 0)
        return read

    def test_an_unchanged_file_is_read_once(self, tmp_path: Path, readings: list[Path]) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        assert {digest(path) for _ in range(3)} == {hashlib.sha256(b"content").hexdigest()}
        assert readings == [path]

    def test_change_that_keeps_size_and_time_changes_the_digest(self, tmp_path: Path, readings: list[Path]) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        digest(path)
        before = path.stat()
        time.sleep(0.02)  # a tick of the file system's clock
        path.write_bytes(b"CONTENT")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert digest(path) == hashlib.sha256(b"CONTENT").hexdigest()

    def test_recently_written_file_is_read_again(
        self, tmp_path: Path, readings: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digests, "_SETTLED_NS", 60_000_000_000)
        path = tmp_path / "file"
        path.write_bytes(b"content")
        digest(path)
        digest(path)
        assert len(readings) == 2

    def test_unchanged_large_folder_is_checked_without_its_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digests, "LARGE", 4)
        monkeypatch.setattr(digests, "_FOLDERS", {})
        for name in ("a/1", "a/2", "b/1", "b/2"):
            (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / name).write_text(name)
        first = digest(tmp_path / "set")
        with monkeypatch.context() as patch:
            patch.setattr(digests, "_stamp", lambda path: pytest.fail("looked at every file"))
            assert digest(tmp_path / "set") == first
        time.sleep(0.02)  # a tick of the file system's clock
        (tmp_path / "set" / "b" / "3").write_text("new")
        assert digest(tmp_path / "set") == digests.sha256(tmp_path / "set") != first

    def test_a_folder_without_links_has_the_digest_that_was_recorded(self, tmp_path: Path) -> None:
        for name in ("b", "a/1", "a/c/2"):
            (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / name).write_text(name)
        assert digest(tmp_path / "set") == "e361647e57d8a9a93ca74bba156f1f30133a52acb4b6d16dde1d97ecb2a55a1f"

    def test_change_in_a_linked_folder_changes_the_digest_of_a_large_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digests, "LARGE", 1)
        monkeypatch.setattr(digests, "_FOLDERS", {})
        for name in ("set", "elsewhere"):
            (tmp_path / name).mkdir()
        (tmp_path / "elsewhere" / "1").write_text("one")
        (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "set")
        (tmp_path / "set" / "a").symlink_to(tmp_path / "elsewhere")
        first = digest(tmp_path / "set")
        time.sleep(0.02)  # a tick of the file system's clock
        (tmp_path / "elsewhere" / "2").write_text("two")
        assert digest(tmp_path / "set") == digests.sha256(tmp_path / "set") != first

    def test_file_is_read_again_if_its_remembered_digest_is_damaged(self, tmp_path: Path, readings: list[Path]) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        expected = digest(path)
        for memo in (tmp_path / "cache" / "digests").iterdir():
            memo.write_bytes(memo.read_bytes()[:-5])
        assert digest(path) == expected
        assert len(readings) == 2

    def test_digest_is_computed_without_a_usable_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        monkeypatch.setenv("ORCHESTRATOR_CACHE", str(path))  # a file where a folder should be
        assert digest(path) == hashlib.sha256(b"content").hexdigest()
        with pytest.raises(FileNotFoundError):
            digest(tmp_path / "absent")
