"""A driver that was stopped or disconnected for longer than its lease does not replace what its successor stores.

Driver A is halted before each of its operations on the storage in turn. Driver B takes the run over, and finishes it or
continues to drive it. Then A continues to its end. The storage is S3 (moto), a store without conditional writes, or a
file system.
"""

from __future__ import annotations

import fcntl
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest

from orchestrator.errors import UserError
from orchestrator.storage import conditional, generations, lease, object_sync, records, remote, run_lookup, sync_state
from orchestrator.storage.conditional import Changed, Objects
from orchestrator.storage.lease import Lease
from orchestrator.storage.object_sync import FolderSync, StopWatcher
from orchestrator.storage.records import RunFolder
from orchestrator.storage.remote import Remote
from tests.support.s3 import in_this_process
from tests.support.toy import Clock

BUCKET = "experiments"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(object_sync, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(object_sync, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 1000.0)
    monkeypatch.setattr(sync_state, "PARALLEL", 1)  # a halted driver sends nothing else meanwhile


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with in_this_process() as address:
        yield address


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket on a store with conditional writes."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL_S3": endpoint}.items():
        monkeypatch.setenv(name, value)
    remote._open.cache_clear()
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}"
    remote._open.cache_clear()


@pytest.fixture
def unconditional(tmp_path: Path) -> str:
    """A store without conditional writes."""
    return f"file://{tmp_path}/bucket"


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.faults), "unconditional"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


Machine = Callable[[str], Path]


@pytest.fixture
def machine(store: str, tmp_path: Path) -> Machine:
    """The mirror of the storage on the machine ``name``, below this test's prefix."""
    return lambda name: remote.mirror_of(f"{store}/{tmp_path.name}", tmp_path / name)


class Halt:
    """Called before each operation on the storage. While A is cut off, its operations fail; later ones are counted.

    ``meanwhile`` is called before the operation number ``step``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations = 0
        self.is_cut = False
        self._step: int | None = None
        self._meanwhile: Callable[[], None] = lambda: None
        for owner, name in ((Remote, "_opened"), (Objects, "_call")):
            monkeypatch.setattr(owner, name, self._before(getattr(owner, name)))

    def at(self, step: int, meanwhile: Callable[[], None]) -> None:
        self.operations, self._step, self._meanwhile = 0, step, meanwhile
        self.is_cut = False

    def has_happened(self) -> bool:
        happened, self._step = self._step is None, None
        return happened

    def _before(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def halted(*words: Any, **more: Any) -> Any:
            if self.is_cut:
                raise OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7")
            if self._step is not None:
                self.operations += 1
                if self.operations > self._step:
                    self._step = None  # the operations of ``meanwhile``, and all after it, are not counted
                    self._meanwhile()
            return operation(*words, **more)

        return halted


@pytest.fixture
def halt(monkeypatch: pytest.MonkeyPatch) -> Halt:
    return Halt(monkeypatch)


def begin(storage: Path, name: str) -> tuple[RunFolder, FolderSync]:
    """Driver A, which has stored a trial and a checkpoint, and has not noticed that it was cut off."""
    folder = records.create(storage, "sweep", "toy", {"seed": 1}, "orchestrator sweep toy", name)
    (folder.path / "study.jsonl").write_text("1\n")
    (folder.path / "trials" / "checkpoint-1").mkdir(parents=True)
    (folder.path / "trials" / "checkpoint-1" / "checkpoint.json").write_text("A")
    following = folder.start_sync()
    assert isinstance(following, FolderSync)
    deadline = time.monotonic() + 60
    while (sync_state.record(following._location) or {}).get("status") != "running":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return folder, following


def take_over(storage: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[RunFolder, FolderSync]:
    """Driver B, which takes over after the end of A's lease."""
    with monkeypatch.context() as later:
        later.setattr(lease, "SECONDS", 0.0)
        folder = run_lookup.find(storage, name).fetch()
        folder.acquire()
    following = folder.start_sync()
    assert isinstance(following, FolderSync)
    with (folder.path / "study.jsonl").open("a") as study:
        study.write("B\n")
    return folder, following


def finish(folder: RunFolder, following: FolderSync) -> None:
    (folder.path / "result").write_text("B")
    folder.release("finished", 0)
    assert following.close() is None


def changes(folder: RunFolder) -> None:
    """The changes that A makes while it is cut off."""
    with (folder.path / "study.jsonl").open("a") as study:
        study.write("A\n")
    (folder.path / "result").write_text("A")
    (folder.path / "trials" / "checkpoint-1" / "checkpoint.json").unlink()
    (folder.path / "trials" / "checkpoint-1").rmdir()


def seen(storage: Path, name: str) -> RunFolder:
    """The run on a machine that has no copy of it."""
    return run_lookup.find(storage, name).fetch()


def steps(halt: Halt, storage: Path, take_over: Callable[[str], None]) -> Iterator[str]:
    """Cut A off and let it continue to its end, which it treats as an interruption, once for each of its operations.

    In each round A is halted before the next operation: the first, the second, and so on. Yields the name of each run.
    """
    for step in count():
        name, before = f"run-{step}", {}
        folder, following = begin(storage, name)
        halt.is_cut = True
        changes(folder)
        folder.release("interrupted", 130)
        following.finish()

        def meanwhile(name: str = name, before: dict[str, Any] = before, following: FolderSync = following) -> None:
            before.update(sync_state.record(following._location) or {})
            take_over(name)

        halt.at(step, meanwhile)
        said = following.close()
        if not halt.has_happened():
            assert step > 5, "the driver has stored nothing"
            assert said is None
            return
        assert folder._lease is not None
        if folder._lease.exclusive:  # otherwise A may not notice before B has stored its record
            assert (said is None) <= (before["status"] == "interrupted"), "A was overtaken and did not report it"
        assert said is None or "taken over by another driver" in said
        yield name


def test_run_finished_by_a_successor_is_not_overwritten(
    machine: Machine, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finishes(name: str) -> None:
        finish(*take_over(machine("two"), name, monkeypatch))

    for name in steps(halt, machine("one"), finishes):
        folder = seen(machine("three"), name)
        assert (folder.record["status"], folder.record["holds"]) == ("finished", 2)
        assert (folder.path / "result").read_text() == "B"
        assert (folder.path / "study.jsonl").read_text().endswith("B\n")
    back = seen(machine("one"), name)
    assert back.status() == "finished", "also on the overtaken driver's machine"
    assert (back.path / "result").read_text() == "B"


@pytest.mark.slow
def test_run_still_driven_by_a_successor_is_not_overwritten(
    machine: Machine, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    driving: dict[str, tuple[RunFolder, FolderSync]] = {}

    def takes_over(name: str) -> None:
        driving[name] = take_over(machine("two"), name, monkeypatch)

    for name in steps(halt, machine("one"), takes_over):
        folder, following = driving[name]
        assert folder._lease is not None
        assert folder._lease.renew_or_lose(), "the successor must keep its lease"
        assert folder._lease.generation == 2
        deadline = time.monotonic() + 60
        while sync_state.undelivered(folder.path, sync_state.manifest(folder.path)[1]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        there = seen(machine("three"), name)
        assert there.status() == "running"
        assert (there.path / "study.jsonl").read_bytes() == (folder.path / "study.jsonl").read_bytes()
        finish(folder, following)
        there = seen(machine("four"), name)
        assert there.status() == "finished"
        assert (there.path / "result").read_text() == "B"


def test_driver_that_was_cut_off_detects_that_it_was_overtaken(
    machine: Machine, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, following = begin(machine("one"), "run")
    finish(*take_over(machine("two"), "run", monkeypatch))
    halt.at(0, lambda: pytest.fail("the storage is asked about a lease that was renewed a moment ago"))
    assert not following.is_overtaken()
    assert not halt.has_happened()
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", -1.0)
    halt.is_cut = True
    assert not following.is_overtaken(), "the storage does not answer"
    halt.is_cut = False
    assert following.is_overtaken()
    assert folder.stop_file.exists()
    assert following.close() is not None


# A file system that several hosts share: the folder is the storage


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setattr(socket, "gethostname", lambda: name)


def forget_lock(folder: RunFolder) -> None:
    """Release the lock, as the server of a network file system does when a host was cut off."""
    assert folder._lock
    fcntl.flock(folder._lock, fcntl.LOCK_UN)


@pytest.mark.parametrize("step", range(6))
def test_successor_on_a_shared_file_system_uses_a_separate_folder(
    step: int, on_host: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B takes over between any two of A's writes, and between the two steps of one: writing aside and renaming."""
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.01)
    on_host("one")
    folder = records.create(tmp_path, "sweep", "toy", {"seed": 1}, "orchestrator sweep toy", "run")
    (folder.path / "study.jsonl").write_text("1\n")
    watch = folder.start_sync()
    assert isinstance(watch, StopWatcher)
    taken: list[RunFolder] = []

    def take_over() -> None:
        forget_lock(folder)
        on_host("two")
        there = run_lookup.find(tmp_path, "run")
        there.acquire()
        on_host("one")
        with (there.path / "study.jsonl").open("a") as study:
            study.write("B\n")
        if step % 2:
            there.release("finished", 0)
        taken.append(there)

    def write(name: str, content: str) -> None:
        partial = folder.path / ".partial"
        partial.write_text(content)
        at(2)
        partial.replace(folder.path / name)

    reached = iter(range(9))

    def at(_: int) -> None:
        if next(reached) == step // 2 and not taken:
            take_over()

    at(0)
    write("study.jsonl", "A\n")
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        at(1)
        return real(self, target)

    with monkeypatch.context() as halted:
        halted.setattr(Path, "replace", replace)
        folder.release("interrupted", 130)
    said = watch.close()
    assert said == "run was taken over by another driver; what this one did since is not stored"

    (there,) = taken
    seen = run_lookup.find(tmp_path, "run")
    assert (seen.id, seen.path, seen.record["holds"]) == ("run", there.path, 2)
    assert seen.record["status"] == ("finished" if step % 2 else "running")
    assert (seen.path / "study.jsonl").read_text().endswith("B\n")
    assert [found.path for found in run_lookup.folders(tmp_path)] == [there.path]
    with pytest.raises(UserError, match="The name run is in use"):
        records.create(tmp_path, "sweep", "toy", {}, "", "run")


def test_watch_stops_only_the_driver_that_was_overtaken(
    on_host: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 0.01)
    on_host("one")
    folder = records.create(tmp_path, "run", "toy", {"seed": 1}, "orchestrator run toy", "run")
    watch = folder.start_sync()
    forget_lock(folder)
    on_host("two")
    there = run_lookup.find(tmp_path, "run")
    there.acquire()
    deadline = time.monotonic() + 60
    while not folder.stop_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not there.stop_file.exists()
    assert watch.close() is not None


def test_a_storage_of_many_runs_is_not_listed_for_each_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker checks before each operation whether the driver was overtaken."""
    folder = records.create(tmp_path, "run", "toy", {"seed": 1}, "orchestrator run toy", "run")
    clock, looks = Clock(), list[float]()

    def of_run(storage: Path, run: str) -> list[str]:
        looks.append(clock.now)
        clock.sleep(seconds)
        return []

    monkeypatch.setattr(object_sync, "RENEW_SECONDS", 10.0)
    monkeypatch.setattr(object_sync, "time", clock)
    monkeypatch.setattr(generations, "of_run", of_run)
    watch, seconds, begun = folder.start_sync(), 0.2, clock.now
    for _ in range(300):
        assert not watch.is_overtaken()
        clock.sleep(0.01)
    assert looks == pytest.approx([begun, begun + 1.0, begun + 2.0, begun + 3.0], abs=0.1)
    seconds = 120.0  # the file system does not answer for so long
    clock.sleep(1.0)
    for _ in range(2):
        watch.is_overtaken()
    assert looks[-1] - looks[-2] == pytest.approx(120.0), "another driver may have taken over meanwhile"
    watch.close()


@pytest.mark.parametrize("host", ["one", "two"])
def test_folder_is_reused_when_the_earlier_driver_has_ended(
    host: str, on_host: Callable[[str], None], tmp_path: Path
) -> None:
    on_host("one")
    folder = records.create(tmp_path, "run", "toy", {"seed": 1}, "orchestrator run toy", "run")
    if host == "two":
        folder.release("interrupted", 130)  # the driver recorded its end itself
    else:
        forget_lock(folder)  # killed on this host: its lock is free
    on_host(host)
    there = run_lookup.find(tmp_path, "run")
    there.acquire()
    assert there.path == folder.path


def test_run_of_an_earlier_version_is_taken_over_in_the_same_folder(
    on_host: Callable[[str], None], tmp_path: Path
) -> None:
    on_host("one")
    folder = records.create(tmp_path, "run", "toy", {"seed": 1}, "orchestrator run toy", "run")
    del folder.record["generation"]
    folder.update()
    forget_lock(folder)
    on_host("two")
    there = run_lookup.find(tmp_path, "run")
    there.acquire()
    assert there.path == folder.path


def test_a_generation_on_a_file_system_is_claimed_once(on_host: Callable[[str], None], tmp_path: Path) -> None:
    on_host("one")
    folder = records.create(tmp_path, "run", "toy", {"seed": 1}, "orchestrator run toy", "run")
    forget_lock(folder)
    (tmp_path / "run@2").mkdir()  # of a driver that died while it copied
    on_host("two")
    there = run_lookup.find(tmp_path, "run")
    there.acquire()
    assert there.path == tmp_path / "run@3"
    assert run_lookup.find(tmp_path, "run").path == there.path


# The lease and the record, which all generations share


def test_a_settled_record_is_not_replaced_by_an_earlier_driver(s3: str, tmp_path: Path) -> None:
    place = Remote(f"{s3}/{tmp_path.name}/run")
    store = conditional.objects(place)
    assert store is not None
    for content in ({"holds": 1, "status": "running"}, {"holds": 2, "status": "finished"}):
        sync_state._publish(store, json.dumps(content).encode())
    with pytest.raises(lease.Overtaken):
        sync_state._publish(store, json.dumps({"holds": 1, "status": "interrupted"}).encode())
    assert (sync_state.record(place) or {})["status"] == "finished"


def test_lease_generation_is_held_by_only_one_of_two_drivers(s3: str, tmp_path: Path) -> None:
    place = Remote(f"{s3}/{tmp_path.name}/run")
    first, second = Lease(place), Lease(place)
    first.take()
    with pytest.raises(UserError, match="driven by another process"):
        second.take()
    first.release()
    assert lease.holder(place) is None
    second.take(above=7)
    assert second.generation == 8
    assert not first.renew_or_lose(lambda: True)
    assert second.renew_or_lose()


def test_lease_is_kept_after_the_answer_to_its_renewal_was_lost(s3: str, tmp_path: Path) -> None:
    ours = Lease(Remote(f"{s3}/{tmp_path.name}/run"))
    ours.take()
    ours._tag = '"of before"'
    assert ours.renew_or_lose()


def test_failed_write_or_remove_condition_raises_changed(s3: str, tmp_path: Path) -> None:
    store = Objects(Remote(f"{s3}/{tmp_path.name}/run"))
    tag = store.write("name", b"1", None)
    for other in (None, '"another"'):
        with pytest.raises(Changed):
            store.write("name", b"2", other)
    with pytest.raises(Changed):
        store.remove("name", '"another"')
    assert store.read("name") == (b"1", tag)
    assert store.read("none") is None


@pytest.mark.parametrize(
    ("hide", "said"),
    [
        ("library", "boto3 is not installed.*pip install 'ray-experiment-orchestrator\\[s3\\]'"),
        ("conditions", "the store does not honour If-Match and If-None-Match"),
    ],
)
def test_storage_without_conditional_writes_gives_a_warning(
    hide: str, said: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hide == "library":
        monkeypatch.setattr(conditional, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(conditional, "_HONOURS", {})
        monkeypatch.setattr(Objects, "write", lambda *_: "the tag of an object that was replaced all the same")
    storage = remote.mirror_of(f"{s3}/{tmp_path.name}", tmp_path / "one")
    folder = records.create(storage, "run", "toy", {"seed": 1}, "orchestrator run toy", "run")
    warning = folder.warning()
    assert warning is not None
    assert re.search(said, warning)


def test_storage_with_conditional_writes_gives_no_warning(s3: str, tmp_path: Path) -> None:
    storage = remote.mirror_of(f"{s3}/{tmp_path.name}", tmp_path / "one")
    assert records.create(storage, "run", "toy", {"seed": 1}, "orchestrator run toy", "run").warning() is None
    assert records.create(tmp_path / "plain", "run", "toy", {"seed": 1}, "", "run").warning() is None


def test_folders_are_ordered_by_their_generation() -> None:
    names = ["run", "run@10-b", "run@9", "other@2", "run@10-a"]
    assert generations.by_run(names) == {"run": ["run@10-b", "run@10-a", "run@9", "run"], "other": ["other@2"]}
    assert not records.NAME.fullmatch("run@2")
