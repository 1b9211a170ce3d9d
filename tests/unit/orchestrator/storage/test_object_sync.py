"""The local copy of a run and the one on the storage: uploads, local-only files, and which machine's copy is newer.

A folder stands for the object store, another home for another machine.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.storage import lease, object_sync, records, remote, requests, run_lookup, sync_state
from orchestrator.storage.object_sync import FolderSync, RemoteFolder, StopWatcher, download
from orchestrator.storage.records import RunFolder
from orchestrator.storage.remote import Remote
from tests.support.waiting import HANG_SECONDS, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(object_sync, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(object_sync, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(object_sync, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(object_sync, "BRING_SECONDS", 0.1)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """While set to [True], every access to the storage fails."""
    state, real = [False], Remote._opened

    def place(self: Remote) -> Any:
        if state[0]:
            raise OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7")
        return real(self)

    monkeypatch.setattr(Remote, "_opened", place)
    yield state
    state[0] = False


def create(storage: Path, name: str = "run") -> RunFolder:
    return records.create(storage, "run", "toy", {"seed": 1}, "orchestrator run toy", name)


def crash(folder: RunFolder, following: FolderSync) -> None:
    """Release the driver's locks, as if it had died without its last uploads."""
    following._lease = None
    following.close()
    assert folder._lock
    folder._lock.close()
    with suppress(OSError):
        end_process(folder)


def end_process(folder: RunFolder) -> None:
    """Make the lease of ``folder`` that of a process of this machine that has ended."""
    place = lease.run_location(remote.location_of(folder.path) or pytest.fail("a plain path"))
    told = json.loads(place.read(lease.NAME) or "{}")
    ended = subprocess.Popen(["true"])
    ended.wait()
    place.write(lease.NAME, json.dumps(told | {"pid": ended.pid}).encode())


def start(folder: RunFolder) -> FolderSync:
    following = folder.start_sync()
    assert isinstance(following, FolderSync)
    return following


def stored(bucket: Path, run: str = "run") -> dict[str, str]:
    found = (path for path in (bucket / run).rglob("*") if path.is_file())
    return {path.relative_to(bucket / run).as_posix(): path.read_text() for path in found}


def is_known(bucket: Path) -> bool:
    """Whether the record is stored completely: unlike an object, a file is visible while it is written."""
    return stored(bucket).get("record.json", "").endswith("}")


# Uploads


def test_changed_files_are_uploaded_and_removed_files_are_deleted(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("one"))
    following = start(folder)
    (folder.path / "log.txt").write_text("a")
    until(lambda: stored(bucket).get("log.txt") == "a")
    with (folder.path / "log.txt").open("a") as log:
        log.write("b")
    (folder.path / "trials" / "0").mkdir(parents=True)
    (folder.path / "trials" / "0" / "state").write_text("s")
    until(lambda: stored(bucket).get("log.txt") == "ab" and "trials/0/state" in stored(bucket))
    shutil.rmtree(folder.path / "trials")
    until(lambda: not (bucket / "run" / "trials").exists())
    folder.release("finished", 0)
    assert following.close() is None
    assert json.loads(stored(bucket)["record.json"])["status"] == "finished"
    assert set(stored(bucket)) == {"log.txt", "record.json"}


def with_checkpoint(storage: Path, bucket: Path) -> tuple[RunFolder, FolderSync]:
    """A run with a driver, of which a checkpoint and the record are stored."""
    folder = create(storage)
    following = start(folder)
    mark = folder.path / CHECKPOINT
    mark.parent.mkdir(parents=True)
    mark.write_text("{}")
    until(lambda: is_known(bucket) and CHECKPOINT in stored(bucket))
    return folder, following


CHECKPOINT = "checkpoints/checkpoint-1/checkpoint.json"


def test_removal_of_the_local_copy_deletes_nothing_from_the_storage(
    machine: Callable[[str], Path], bucket: Path
) -> None:
    """For example, a user clears a cache while the run continues."""
    folder, following = with_checkpoint(machine("one"), bucket)
    folder.path.rename(folder.path.with_name("elsewhere"))
    assert following.close() == (
        f"The last files were not stored: {folder.path} cannot be read (No such file or directory)"
    )
    assert {"record.json", CHECKPOINT} <= set(stored(bucket))


def test_files_that_cannot_be_listed_are_not_deleted_from_the_storage(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with too many open files cannot open a folder either."""
    folder, following = with_checkpoint(machine("one"), bucket)
    listed = os.scandir
    tried: list[str] = []

    def scandir(path: str) -> Any:
        if str(path).startswith(str(folder.path)):
            tried.append(path)
            raise OSError(errno.EMFILE, "Too many open files", path)
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        until(lambda: len(tried) > 2)
        assert CHECKPOINT in stored(bucket)
    folder.release("finished", 0)
    assert following.close() is None


@pytest.mark.parametrize(
    "name", ["lock", ".hidden", ".checkpoint-1.9.partial/state", "half.partial", "tune/state.pkl", "trials/0/stack.txt"]
)
def test_local_only_files_are_not_uploaded(name: str, machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("one"))
    (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / name).write_text("x")
    assert start(folder).close() is None
    assert set(stored(bucket)) == {"record.json"}


def test_partially_uploaded_checkpoint_is_not_downloaded(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("one"))
    for place in ("checkpoints/checkpoint-00000001", "trials/0/checkpoint-00000002"):
        (folder.path / place).mkdir(parents=True)
        (folder.path / place / "tensors.safetensors").write_text("x")
    following = start(folder)
    until(lambda: len([name for name in stored(bucket) if name.endswith(".safetensors")]) == 2)
    (folder.path / "checkpoints" / "checkpoint-00000001" / "checkpoint.json").write_text("{}")
    until(lambda: "checkpoints/checkpoint-00000001/checkpoint.json" in stored(bucket))
    crash(folder, following)

    there = run_lookup.find(machine("two"), folder.id).fetch()
    brought = {path.parent.name for path in there.path.rglob("checkpoint-*/*")}
    assert brought == {"checkpoint-00000001"}


def test_checkpoint_json_is_uploaded_after_the_tensors(
    machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sent = create(machine("one")), []
    real = Remote.send
    monkeypatch.setattr(Remote, "send", lambda self, file, name: (sent.append(name), real(self, file, name)))
    written = folder.path / "checkpoints" / "checkpoint-00000001"
    written.mkdir(parents=True)
    for name in ("checkpoint.json", "tensors.safetensors"):
        (written / name).write_text("x")
    start(folder).close()
    assert sent[-2:] == ["checkpoints/checkpoint-00000001/checkpoint.json", "record.json"]


def test_send_now_uploads_without_waiting_for_the_next_poll(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "POLL_SECONDS", 3600)
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    folder.provisional_end("interrupted", 130)
    following.send_now()
    until(lambda: '"status": "interrupted"' in stored(bucket).get("record.json", ""))
    folder.release("interrupted", 130)
    assert following.close() is None
    assert json.loads(stored(bucket)["record.json"])["ended"]


def test_all_files_are_uploaded_after_an_outage(machine: Callable[[str], Path], bucket: Path, away: list[bool]) -> None:
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    away[0] = True
    for number in range(5):
        (folder.path / f"file-{number}").write_text("x")
        time.sleep(0.03)
    assert not any(name.startswith("file-") for name in stored(bucket))
    away[0] = False
    until(lambda: len(stored(bucket)) == 7)  # including the lease
    assert following.close() is None


def test_files_not_stored_are_reported_and_uploaded_later(
    machine: Callable[[str], Path], bucket: Path, away: list[bool]
) -> None:
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    away[0] = True
    (folder.path / "result").write_text("x")
    following.discard("trials")
    folder.release("finished", 0)
    said = following.close()
    assert said is not None
    assert said.startswith("3 files could not be stored (nothing answers)")
    assert "orchestrator sync run --storage " in said
    with pytest.raises(OSError, match="NETWORK"):
        sync_state.upload_pending(folder.path)
    away[0] = False
    end_process(folder)
    (bucket / "run" / "trials").mkdir()
    assert sync_state.upload_pending(folder.path) == 3
    assert stored(bucket)["result"] == "x"
    assert json.loads(stored(bucket)["record.json"])["status"] == "finished"
    assert not (bucket / "run" / "trials").exists()
    assert sync_state.upload_pending(folder.path) == 0


def test_files_uploaded_before_are_not_uploaded_again(
    machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create(machine("one"))
    (folder.path / "big").write_text("x")
    following = start(folder)
    folder.release("interrupted", 130)
    following.close()
    sent: list[str] = []
    monkeypatch.setattr(Remote, "send", lambda self, file, name: sent.append(name))
    again = run_lookup.find(machine("one"), "run").fetch()
    again.acquire()
    start(again).close()
    assert sent == ["record.json"]


# On another machine


def test_another_machine_finds_fetches_and_resumes_the_run(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("one"))
    following = start(folder)
    (folder.path / "study.jsonl").write_text("1\n")
    checkpoint = folder.path / "trials" / "0" / "checkpoint-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text("{}")
    until(lambda: len(stored(bucket)) == 4)
    seen = run_lookup.find(machine("two"), "latest")
    assert (seen.id, seen.status()) == ("run", "running")
    crash(folder, following)
    assert run_lookup.find(machine("two"), "run").status() == "lost"

    (listed,) = run_lookup.folders(machine("three"))
    assert (listed.id, listed.status()) == ("run", "lost")
    assert not machine("three").exists(), "a listing must download nothing"

    there = run_lookup.find(machine("two"), "run")
    assert (there.path / "study.jsonl").read_text() == "1\n"
    assert not list(there.path.rglob("checkpoint.json")), "a lookup must not download checkpoints"
    there = there.fetch()
    assert list(there.path.rglob("checkpoint.json"))
    there.acquire()
    further = start(there)
    (there.path / "study.jsonl").write_text("1\n2\n")
    shutil.rmtree(there.path / "trials")
    there.release("finished", 0)
    assert further.close() is None
    assert set(stored(bucket)) == {"record.json", "study.jsonl"}

    back = run_lookup.find(machine("one"), "run").fetch()
    assert back.status() == "finished"
    assert (back.path / "study.jsonl").read_text() == "1\n2\n"
    assert not (back.path / "trials").exists(), "the newer copy replaces the older"


def test_newer_local_file_is_not_replaced_on_fetch(
    machine: Callable[[str], Path], bucket: Path, away: list[bool]
) -> None:
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    away[0] = True
    (folder.path / "study.jsonl").write_text("newer\n")
    crash(folder, following)
    away[0] = False
    assert (run_lookup.find(machine("one"), "run").fetch().path / "study.jsonl").read_text() == "newer\n"


def test_finding_a_run_keeps_undelivered_local_files(
    machine: Callable[[str], Path], bucket: Path, away: list[bool]
) -> None:
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    away[0] = True
    (folder.path / "result").write_text("undelivered")
    crash(folder, following)
    away[0] = False
    end_process(folder)
    there = run_lookup.find(machine("two"), "run").fetch()
    there.acquire()
    start(there).close()
    looked = run_lookup.find(machine("one"), "run")
    assert looked.record["holds"] == 2
    assert (looked.path / "result").exists()
    assert not (looked.fetch().path / "result").exists()


def test_lease_is_renewed_during_a_long_upload(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.05)
    folder, release = create(machine("one")), threading.Event()
    monkeypatch.setattr(Remote, "send", lambda *_: release.wait(HANG_SECONDS))
    following = start(folder)
    before = (bucket / "run" / lease.NAME).stat().st_mtime_ns
    until(lambda: (bucket / "run" / lease.NAME).stat().st_mtime_ns > before)
    release.set()
    following.close()


def test_fetch_updates_a_copy_made_before_later_uploads(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    run_lookup.find(machine("two"), "run")
    (folder.path / "study.jsonl").write_text("1\n")
    until(lambda: "study.jsonl" in stored(bucket))
    crash(folder, following)  # the record has not changed since
    assert (run_lookup.find(machine("two"), "run").fetch().path / "study.jsonl").read_text() == "1\n"


def test_second_driver_on_another_machine_is_refused(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    there = run_lookup.find(machine("two"), "run").fetch()
    with pytest.raises(UserError, match="run is being driven by another process"):
        there.acquire()
    with pytest.raises(UserError, match="The name run is in use"):
        create(machine("two"))
    folder.release("interrupted", 130)
    following.close()
    there = run_lookup.find(machine("two"), "run").fetch()
    there.acquire()
    with pytest.raises(UserError, match="being driven by another process"):
        folder.acquire()


def test_driver_that_was_overtaken_stops_and_stores_nothing_more(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.05)
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    place = remote.location_of(folder.path)
    assert place is not None
    lease.Lease(place).renew()  # another driver's, after this one was cut off for a minute
    until(folder.stop_file.exists)
    (folder.path / "result").write_text("of the overtaken")
    said = following.close()
    assert said is not None
    assert "taken over by another driver" in said
    assert "result" not in stored(bucket)
    assert lease.valid(place), "the other driver's lease must stay"


def test_acquire_of_a_copy_continued_on_another_machine_is_refused(machine: Callable[[str], Path]) -> None:
    folder = create(machine("one"))
    following = start(folder)
    folder.release("interrupted", 130)
    following.close()
    here = run_lookup.find(machine("one"), "run").fetch()
    there = run_lookup.find(machine("two"), "run").fetch()
    there.acquire()
    other = start(there)
    there.release("interrupted", 130)
    other.close()
    with pytest.raises(UserError, match="was continued on another machine meanwhile"):
        here.acquire()


def test_stop_request_reaches_a_driver_on_another_machine(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.05)
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    run_lookup.find(machine("two"), "run").stop()
    until(folder.stop_file.exists)
    folder.release("interrupted", 130)
    following.close()
    there = run_lookup.find(machine("two"), "run").fetch()
    there.acquire()
    other = start(there)
    until(lambda: "stop" not in stored(bucket))
    assert not there.stop_file.exists()
    other.close()


def test_an_old_stop_does_not_stop_a_driver_with_much_to_store(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions, such as that of the old request, are sent after the last upload; stop requests are read before."""
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    run_lookup.find(machine("two"), "run").stop()
    crash(folder, following)
    again = run_lookup.find(machine("one"), "run").fetch()
    again.acquire()
    deliver, sent = sync_state.deliver, threading.Event()
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(sync_state, "deliver", lambda *what: sent.wait(HANG_SECONDS) and deliver(*what))
    following = start(again)
    time.sleep(0.5)
    stopped = again.stop_file.exists()
    sent.set()
    following.close()
    assert not stopped


def test_requests_reach_a_driver_on_another_machine_and_the_next_driver(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.05)
    folder = create(machine("one"))
    following = start(folder)
    until(lambda: is_known(bucket))
    run_lookup.find(machine("two"), "run").request({"stop": 7})
    until(lambda: requests.read(folder.path))
    folder.release("interrupted", 130)
    following.close()
    run_lookup.find(machine("two"), "run").request({"stop": 8})  # the run has no driver now
    there = run_lookup.find(machine("three"), "run").fetch()
    assert [values for _, values in requests.read(there.path)] == [{"stop": 7}, {"stop": 8}]


def test_request_objects_with_a_path_in_their_name_are_ignored(tmp_path: Path) -> None:
    class Stored:
        def __truediv__(self, name: str) -> Stored:
            return self

        def files(self) -> list[str]:
            return ["../../../settings.json", "other/1.json", "1.json"]

        def fetch(self, name: str, target: Path) -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text('{"stop": 7}')

    folder = tmp_path / "storage" / "run"
    requests.fetch(folder, Stored())  # type: ignore[arg-type]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [folder / "requests" / "1.json"]


def test_local_copy_is_shown_while_the_storage_is_unreachable(machine: Callable[[str], Path], away: list[bool]) -> None:
    folder = create(machine("one"))
    following = start(folder)
    folder.release("finished", 0)
    following.close()
    away[0] = True
    assert run_lookup.find(machine("one"), "run").status() == "finished"
    assert [found.id for found in run_lookup.folders(machine("one"))] == ["run"]
    for name in ("run", "latest"):
        with pytest.raises(UserError, match="cannot be used: nothing answers") as caught:
            run_lookup.find(machine("two"), name)
        assert caught.value.code == UNAVAILABLE


# A worker on another node


def test_files_of_a_worker_on_another_node_reach_the_driver(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("driver"))
    following = start(folder)
    there = machine("node") / "run" / "trials" / "00000"
    carried = RemoteFolder(there)
    (there / "units.parquet").write_text("u")
    carried.close()
    assert stored(bucket)["trials/00000/units.parquet"] == "u"
    here = folder.path / "trials" / "00000"
    download(here, "units.parquet")
    assert (here / "units.parquet").read_text() == "u"
    shutil.rmtree(here.parent)
    following.discard("trials")
    with pytest.raises(UserError, match="cannot be downloaded: got there is no other") as caught:
        download(here, "other")
    assert caught.value.code == UNAVAILABLE
    following.close()
    assert not (bucket / "run" / "trials").exists()


def test_moved_trial_gets_its_checkpoints_and_does_not_upload_them_again(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Path("run") / "trials" / "00000"
    with RemoteFolder(machine("one") / trial):
        for number in (1, 2):
            (machine("one") / trial / f"checkpoint-{number}").mkdir()
            (machine("one") / trial / f"checkpoint-{number}" / "checkpoint.json").write_text("{}")
    sent: list[str] = []
    real = Remote.send
    monkeypatch.setattr(Remote, "send", lambda self, file, name: (sent.append(name), real(self, file, name)))
    with RemoteFolder(machine("two") / trial):
        assert sorted(os.listdir(machine("two") / trial))[-2:] == ["checkpoint-1", "checkpoint-2"]
        shutil.rmtree(machine("two") / trial / "checkpoint-1")
    assert set(stored(bucket)) == {"trials/00000/checkpoint-2/checkpoint.json"}
    assert sent == [], "downloaded files must not be sent back"


def test_no_files_are_synced_on_the_driver_machine_or_on_a_plain_path(
    machine: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = create(machine("driver"))
    for place in (folder.path / "trials" / "0", tmp_path / "storage" / "run"):
        assert RemoteFolder(place)._sync is None
        assert not (place / sync_state.MANIFEST).exists()
    download(tmp_path, "never")  # all nodes share a plain path: nothing to wait for
    following = create(tmp_path / "storage").start_sync()
    assert isinstance(following, StopWatcher)
    assert following.close() is None


def test_worker_uploads_only_its_parts_of_the_run_folder(machine: Callable[[str], Path], bucket: Path) -> None:
    folder = create(machine("driver"))
    start(folder).close()
    before = stored(bucket)["record.json"]
    with RemoteFolder(machine("node") / "run", ("train", "outcome.json")):
        assert not (machine("node") / "run" / "record.json").exists()
        (machine("node") / "run" / "record.json").write_text("no business of its")
        (machine("node") / "run" / "outcome.json").write_text("{}")
    assert stored(bucket)["record.json"] == before
    assert stored(bucket)["outcome.json"] == "{}"


def test_stop_request_reaches_a_worker_on_another_node(
    machine: Callable[[str], Path], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "LISTEN_SECONDS", 0.05)
    folder = create(machine("driver"))
    following = start(folder)
    (machine("node") / "run").mkdir(parents=True)
    (machine("node") / "run" / "stop").touch()  # a request to an earlier driver, received here
    with RemoteFolder(machine("node") / "run" / "winner"):
        assert not (machine("node") / "run" / "stop").exists()
        folder.stop_file.touch()
        until((machine("node") / "run" / "stop").exists)
    following.close()


def test_worker_starts_while_the_storage_is_unreachable(machine: Callable[[str], Path], away: list[bool]) -> None:
    away[0] = True
    there = machine("node") / "run" / "trials" / "00000"
    with RemoteFolder(there):
        assert there.is_dir()
