"""Run folders: one driver each, a correct status after any end, and unique ids."""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UNAVAILABLE, Interrupted, UserError
from orchestrator.storage import disk, records, run_lookup
from orchestrator.storage.records import RunFolder
from tests.support.waiting import HANG_SECONDS


def create(storage: Path, kind: Any = "run", workload: str = "toy") -> RunFolder:
    return records.create(storage, kind, workload, {"seed": 1}, "orchestrator run toy")


def elsewhere(action: Callable[[], Any]) -> Any:
    """Start a driver process that calls ``action``, keeps the result and waits; return the process when it is ready."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def drive() -> None:
        held = action()
        ready.set()
        signal.pause()
        del held

    process = context.Process(target=drive, daemon=True)
    process.start()
    assert ready.wait(HANG_SECONDS)
    return process


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_record_of_a_new_folder_has_the_request_and_the_driver(tmp_path: Path) -> None:
    folder = create(tmp_path / "deep" / "storage")
    record = json.loads((folder.path / "record.json").read_text())
    assert record == folder.record
    assert (record["format"], record["kind"], record["workload"]) == (1, "run", "toy")
    assert (record["spec"], record["command"]) == ({"seed": 1}, "orchestrator run toy")
    assert (record["pid"], record["status"], record["exit_code"]) == (os.getpid(), "running", None)
    assert folder.id.startswith("toy-")
    assert folder.status() == "running"
    assert folder.has_live_driver()


@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        (
            "interrupted",
            130,
            "Continue it: orchestrator sweep --resume s1 --storage {0}, or choose another with --name.",
        ),
        ("failed", 1, "Continue it: orchestrator sweep --resume s1 --storage {0}, or choose another with --name."),
        ("failed", 2, "Choose another with --name."),
        ("partial", 4, "Choose another with --name."),
        (None, None, "Choose another with --name."),
    ],
)
def test_name_in_use_is_refused_with_a_fix_for_the_run_that_has_it(
    status: Any, code: Any, fix: str, tmp_path: Path
) -> None:
    """The message does not depend on the verb. A finished or running run is not continued."""
    folder = records.create(tmp_path, "sweep", "toy", {}, "orchestrator sweep toy", "s1")
    if status:
        folder.release(status, code)
    with pytest.raises(UserError) as caught:
        records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "s1")
    assert str(caught.value) == f"The name s1 is in use by a sweep. {fix.format(tmp_path)}"
    (folder.path / "record.json").unlink()
    (folder.path / "log.txt").touch()
    with pytest.raises(UserError, match=r"^The name s1 is in use. Choose another with --name.$"):
        records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "s1")


def test_stale_folder_without_a_record_frees_its_name(tmp_path: Path) -> None:
    folder = records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "r1")
    (folder.path / "record.json").rename(folder.path / ".record.1")
    with pytest.raises(UserError, match="The name r1 is in use"):  # its lock is held
        records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "r1")
    folder.release("failed", 1)
    (folder.path / "record.json").unlink()
    with pytest.raises(UserError, match="The name r1 is in use"):  # another driver may be about to take its lock
        records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "r1")
    earlier = time.time() - 2 * records.UNRECORDED_SECONDS
    os.utime(folder.path, (earlier, earlier))
    assert records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "r1").id == "r1"


def test_ids_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Now(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Now:
            return cls(2026, 11, 21, tzinfo=UTC)

    names = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(records, "datetime", Now)
    monkeypatch.setattr(secrets, "token_hex", lambda count: next(names) if count == 2 else "0" * 16)
    assert [create(tmp_path).id for _ in range(2)] == ["toy-20261121-000000-aaaa", "toy-20261121-000000-bbbb"]


def test_run_whose_driver_is_killed_while_it_saves_is_interrupted(tmp_path: Path) -> None:
    def begin() -> RunFolder:
        folder = create(tmp_path)
        folder.provisional_end("interrupted", 130)
        return folder

    driver = elsewhere(begin)
    folder = run_lookup.find(tmp_path, "latest")
    assert (folder.record["status"], folder.status()) == ("interrupted", "running")
    with pytest.raises(UserError, match="is being driven by another process"):
        folder.acquire()
    kill(driver)
    again = run_lookup.find(tmp_path, "latest")
    assert (again.status(), again.record["exit_code"]) == ("interrupted", 130)
    again.acquire()
    assert (again.record["status"], again.record["exit_code"]) == ("running", None)


def test_concurrent_record_updates_of_two_threads_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thread is stopped right before its copy replaces the record."""
    folder = create(tmp_path)
    standing = threading.Event()
    going = threading.Event()
    whole = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if threading.current_thread() is first:
            standing.set()
            assert going.wait(60)
        return whole(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    first = threading.Thread(target=lambda: folder.update(one=1))
    second = threading.Thread(target=lambda: folder.update(two=2))
    first.start()
    assert standing.wait(60)
    second.start()
    second.join(0.1)  # as far as the second thread gets
    going.set()
    first.join(60)
    second.join(60)
    record = json.loads((folder.path / "record.json").read_text())
    assert (record["one"], record["two"]) == (1, 2)
    assert [file.name for file in folder.path.glob(".record.*")] == []


def test_release_stores_status_exit_code_and_end_time(tmp_path: Path) -> None:
    folder = create(tmp_path)
    folder.release("finished", 0, run_id="abc")
    again = run_lookup.find(tmp_path, folder.id)
    assert (again.status(), again.record["exit_code"], again.record["run_id"]) == ("finished", 0, "abc")
    assert again.record["ended"] >= again.record["started"]
    assert not again.has_live_driver()


def test_a_folder_has_one_driver(tmp_path: Path) -> None:
    folder = create(tmp_path)
    with pytest.raises(UserError, match=f"{folder.id} is being driven by another process: got pid {os.getpid()}"):
        run_lookup.find(tmp_path, folder.id).acquire()
    folder.release("interrupted", 130)
    again = run_lookup.find(tmp_path, folder.id)
    again.acquire()
    assert (again.status(), again.record["ended"], again.record["exit_code"]) == ("running", None, None)


def test_error_of_a_failed_run_is_cleared_when_it_is_resumed(tmp_path: Path) -> None:
    folder = create(tmp_path)
    with pytest.raises(KeyError), folder.guarded():
        raise KeyError("linreg")
    assert records.open_folder(folder.path).record["error"] == "KeyError: 'linreg'"
    again = records.open_folder(folder.path)
    again.acquire()
    assert again.record["error"] is None, "no error while it runs again"
    again.release("finished", 0)
    assert records.open_folder(folder.path).record["error"] is None


@pytest.mark.parametrize(
    ("error", "raised", "status", "code"),
    [
        (UserError("No such data"), UserError, "failed", 2),
        (KeyboardInterrupt(), Interrupted, "interrupted", 130),
    ],
)
def test_end_before_the_session_is_recorded_with_status_and_exit_code(
    error: BaseException, raised: type[Exception], status: str, code: int, tmp_path: Path
) -> None:
    folder = create(tmp_path)
    with pytest.raises(raised) as caught, folder.guarded():
        raise error
    if raised is Interrupted:
        assert str(caught.value).endswith(
            f"Continue with: orchestrator run --resume {folder.id} --storage {folder.path.parent}"
        )
    again = records.open_folder(folder.path)
    assert (again.status(), again.record["exit_code"]) == (status, code)


def test_run_of_a_killed_driver_is_lost_and_can_be_taken_over(tmp_path: Path) -> None:
    driver = elsewhere(lambda: create(tmp_path))
    folder = run_lookup.find(tmp_path, "latest")
    assert folder.status() == "running"
    with pytest.raises(
        UserError, match=f"driven by another process: got pid {driver.pid}.*orchestrator stop {folder.id}"
    ):
        folder.acquire()
    kill(driver)
    assert folder.status() == "lost"
    folder.acquire()
    assert run_lookup.find(tmp_path, folder.id).record["pid"] == os.getpid()


def test_check_for_a_live_driver_does_not_lock_the_folder(tmp_path: Path) -> None:
    folder = create(tmp_path)
    folder.release("failed", 1)
    looking = run_lookup.find(tmp_path, folder.id)
    for _ in range(3):
        assert not looking.has_live_driver()
    run_lookup.find(tmp_path, folder.id).acquire()


def test_process_forked_by_the_driver_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    folder = create(tmp_path)
    forked = elsewhere(lambda: None)
    assert folder.has_live_driver()
    assert folder._lock
    folder._lock.close()  # the driver is killed
    assert not folder.has_live_driver()
    run_lookup.find(tmp_path, folder.id).acquire()
    kill(forked)


def test_an_old_stop_does_not_stop_the_next_driver(tmp_path: Path) -> None:
    folder = create(tmp_path)
    folder.stop_file.touch()
    folder.release("interrupted", 130)
    folder.acquire()
    assert not folder.stop_file.exists()


def test_acquire_of_an_unwritable_folder_raises_user_error(tmp_path: Path) -> None:
    folder = create(tmp_path)
    folder.release("interrupted", 130)
    lock = folder.path / "lock"
    lock.unlink()
    lock.mkdir()  # this fails for root too, unlike missing rights
    message = f"The folder {folder.path} cannot be written: got Is a directory"
    with pytest.raises(UserError, match=message) as caught:
        folder.acquire()
    assert caught.value.code == UNAVAILABLE


def test_failed_acquire_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create(tmp_path)
    folder.release("interrupted", 130)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(UserError, match="cannot be written: got No space left on device"):
            run_lookup.find(tmp_path, folder.id).acquire()
    assert run_lookup.find(tmp_path, folder.id).status() == "interrupted"
    run_lookup.find(tmp_path, folder.id).acquire()


def test_ctrl_c_in_the_making_of_a_folder_leaves_its_name_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(self: RunFolder) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "acquire", pressed)
        with pytest.raises(KeyboardInterrupt):
            records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "one")
    assert records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", "one").has_live_driver()


def test_release_that_cannot_be_written_frees_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            folder.release("finished", 0)
    assert run_lookup.find(tmp_path, folder.id).status() == "lost"


def test_full_disk_before_the_session_raises_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    message = f"The storage {tmp_path} cannot be written: got No space left on device"
    with pytest.raises(UserError, match=message) as caught, folder.guarded():
        folder.update(inputs={})
    assert caught.value.code == UNAVAILABLE
    assert not folder.has_live_driver()


def test_stop_that_cannot_be_written_raises_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create(tmp_path)

    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", denied)
    with pytest.raises(UserError, match="cannot be written: got Permission denied") as caught:
        folder.stop()
    assert caught.value.code == UNAVAILABLE


def test_a_killed_writer_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create(tmp_path)

    def died(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", died)
    with pytest.raises(KeyboardInterrupt):
        folder.update(spec={"seed": 2})
    assert run_lookup.find(tmp_path, folder.id).record["spec"] == {"seed": 1}


# Damage


@pytest.mark.parametrize(
    ("content", "kept"),
    [("", ""), ("a\n", "a\n"), ("a\nb\n", "a\nb\n"), ("a\nb", "a\n"), ("ab", ""), ("\n\nb", "\n\n")],
)
def test_half_a_line_is_cut_off(content: str, kept: str, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text(content)
    disk.drop_half_line(tmp_path / "journal")
    assert (tmp_path / "journal").read_text() == kept
    disk.drop_half_line(tmp_path / "none")
    assert not (tmp_path / "none").exists()


# Storage


def test_check_of_a_writable_storage_creates_it_and_leaves_no_files(tmp_path: Path) -> None:
    disk.check_writable(tmp_path / "new" / "storage")
    assert list((tmp_path / "new" / "storage").iterdir()) == []


@pytest.mark.parametrize("ask", [disk.check_writable, create])
@pytest.mark.parametrize("below", ["file", "file/deep/storage"])
def test_storage_below_a_file_raises_user_error(ask: Callable[[Path], Any], below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        UserError, match=rf"The storage {tmp_path}/{below} cannot be used: {tmp_path}/file is a file, .*--storage"
    ) as caught:
        ask(tmp_path / below)
    assert caught.value.code == UNAVAILABLE
