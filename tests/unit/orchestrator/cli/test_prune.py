"""Removal of orphaned files and MLflow runs: folders of killed drivers and a real MLflow store."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestrator.cli import prune
from orchestrator.cli.prune import Orphan, orphans, remove, stale
from orchestrator.cli.storage import clean
from orchestrator.errors import FAILED
from orchestrator.storage import lease, records, remote, run_lookup, sync_state
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings, resolve
from orchestrator.tracking.client import OWNER
from orchestrator.tracking.client import RECORD as RECORD_TAG
from tests.support.waiting import until


@pytest.fixture
def settings(home: Path) -> Settings:
    return resolve()


def create(settings: Settings, name: str, kind: Any = "run", keep: str = "winner") -> RunFolder:
    return records.create(settings.storage, kind, "toy", {"options": {"keep": keep}}, "orchestrator run toy", name)


def write(folder: RunFolder, *names: str, content: str = "x") -> None:
    for name in names:
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text(content)


def lose(folder: RunFolder) -> None:
    """Close the lock of the folder, as if its driver were killed."""
    assert folder._lock
    folder._lock.close()


def kinds(found: list[Orphan]) -> dict[str, str]:
    return {orphan.path.name: orphan.kind for orphan in found}


@pytest.fixture
def mirrored(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose storage is an object store, the folder ``bucket``."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    settings = resolve()
    object.__setattr__(settings, "storage", remote.mirror_of(f"file://{tmp_path}/bucket", home))
    return settings


def half_stored(settings: Settings, *empty: str, status: Any = "finished", code: int = 0) -> RunFolder:
    """A run that has ended: its history and ``empty`` files are stored, ``late`` was written later and is not."""
    folder = create(settings, "one")
    following = folder.start_sync()
    write(folder, "history.jsonl")
    write(folder, *empty, content="")
    folder.release(status, code)
    assert following is not None
    assert following.close() is None
    write(folder, "late")
    return folder


def test_an_empty_storage_has_nothing_to_clean(settings: Settings) -> None:
    assert orphans(settings) == []
    assert prune.as_text([], [], removed=False) == "Nothing to clean"


@pytest.mark.parametrize(
    ("status", "keep", "kept", "goes"),
    [
        ("finished", "winner", False, True),
        ("partial", "winner", False, True),
        ("finished", "all", False, False),
        ("finished", "all", True, True),
        ("interrupted", "winner", True, False),
        ("failed", "winner", True, False),
    ],
)
def test_trial_checkpoints_are_removed_depending_on_status_and_keep(
    status: Any, keep: str, kept: bool, goes: bool, settings: Settings
) -> None:
    folder = create(settings, "one", "sweep", keep)
    write(folder, "trials/00000/checkpoint-00000001/checkpoint.json", "winner/checkpoints/c", "study.jsonl")
    folder.release(status, 0)
    found = orphans(settings, kept=kept)
    assert kinds(found) == ({"trials": "trials' checkpoints of a settled sweep"} if goes else {})
    assert [orphan.bytes for orphan in found] == [1] * goes
    assert remove(found) == (found, [])
    assert (folder.path / "trials").exists() is not goes
    assert (folder.path / "winner" / "checkpoints").exists()
    assert (folder.path / "study.jsonl").exists()


def test_files_of_a_driven_sweep_are_not_removed(settings: Settings) -> None:
    folder = create(settings, "one", "sweep")
    write(folder, "trials/00000/.checkpoint-00000001.7.partial/tensors", "tracking.jsonl", content="")
    assert orphans(settings, kept=True) == []
    lose(folder)
    found = orphans(settings)
    assert found
    again = run_lookup.find(settings.storage, "one")
    again.acquire()  # between the search and the removal
    assert remove(found) == ([], [])
    assert (folder.path / "trials").exists()


@pytest.mark.parametrize(
    "name", ["checkpoints/.checkpoint-00000002.7.partial", "train/.selection.7.partial", "start/.state.7.partial"]
)
def test_only_half_written_checkpoints_of_a_lost_run_are_removed(name: str, settings: Settings) -> None:
    folder = create(settings, "one")
    needed = ["history.jsonl", "events.jsonl", "checkpoints/checkpoint-00000001/checkpoint.json", "log.txt"]
    write(folder, *needed, f"{name}/tensors", "tracking.jsonl")
    write(folder, "checkpoints/.weights.7.partial")  # another command may be downloading it
    lose(folder)
    (half,) = orphans(settings)
    assert (half.kind, half.path) == ("half-written checkpoint", folder.path / name)
    assert remove([half]) == ([half], [])
    assert not half.path.exists()
    assert all((folder.path / name).exists() for name in [*needed, "tracking.jsonl", "record.json"])


@pytest.mark.parametrize("holding", ["study.jsonl", "history.jsonl", "tracking.jsonl", "train/checkpoint-00000001/x"])
def test_folder_of_a_lost_run_is_removed_only_if_it_holds_nothing(holding: str, settings: Settings) -> None:
    empty, full = create(settings, "empty"), create(settings, "full")
    write(full, holding)
    write(empty, "log.txt")
    lose(empty), lose(full)
    (orphan,) = orphans(settings)
    assert (orphan.kind, orphan.path) == ("folder of a lost run that holds nothing", empty.path)
    assert remove([orphan]) == ([orphan], [])
    assert not empty.path.exists()


@pytest.mark.parametrize("content", ["", '{"format": 1', "[]"])
def test_folder_with_a_damaged_record_is_removed(content: str, settings: Settings) -> None:
    folder = create(settings, "one")
    lose(folder)
    (folder.path / "record.json").write_text(content)
    (orphan,) = orphans(settings)
    assert (orphan.kind, orphan.path) == ("folder with a damaged record", folder.path)
    assert remove([orphan]) == ([orphan], [])


def test_folder_whose_record_may_not_be_read_is_not_an_orphan(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(create(settings, "one"))

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    assert orphans(settings) == []


def test_half_written_checkpoint_of_a_sweep_with_keep_all_is_removed(settings: Settings) -> None:
    folder = create(settings, "one", "sweep", "all")
    half = "trials/00000/.checkpoint-00000002.7.partial"
    write(folder, "trials/00000/checkpoint-00000001/tensors", f"{half}/tensors")
    folder.release("finished", 0)
    found = orphans(settings)
    assert [orphan.path for orphan in found] == [folder.path / half]
    assert remove(found) == (found, [])
    assert (folder.path / "trials/00000/checkpoint-00000001/tensors").exists()


def test_folders_of_a_newer_format_and_foreign_folders_are_kept(settings: Settings) -> None:
    newer = create(settings, "newer")
    newer.update(format=99)
    lose(newer)
    foreign = settings.storage / "foreign"
    foreign.mkdir()
    (foreign / "record.json").write_text("not ours")
    assert orphans(settings) == []


def test_half_written_checkpoint_of_another_host_is_kept_for_a_day(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some file systems, the lock of a process is visible only on its own host."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "another")
        folder = create(settings, "one")
    write(folder, "history.jsonl", "pulse.json", "checkpoints/.checkpoint-00000002.7.partial/tensors")
    lose(folder)
    moment = time.time() - 2 * 86_400
    os.utime(folder.path / "record.json", (moment, moment))
    assert orphans(settings) == []
    os.utime(folder.path / "pulse.json", (moment, moment))
    assert [orphan.kind for orphan in orphans(settings)] == ["half-written checkpoint"]


def test_only_the_delivered_journal_is_an_orphan(settings: Settings) -> None:
    for name, content in (("delivered", ""), ("waiting", "{}\n")):
        folder = create(settings, name)
        write(folder, "tracking.jsonl", content=content)
        folder.release("finished", 0)
    (orphan,) = orphans(settings)
    assert (orphan.kind, orphan.run.name) == ("delivered journal", "delivered")


def test_older_than_excludes_recently_changed_sweeps(settings: Settings) -> None:
    folder = create(settings, "one", "sweep")
    write(folder, "trials/0")
    folder.release("finished", 0)
    assert orphans(settings, older_than=1) == []
    moment = time.time() - 2 * 86_400
    os.utime(folder.path / "record.json", (moment, moment))
    assert len(orphans(settings, older_than=1)) == 1


def test_local_copy_is_removed_only_if_all_of_it_is_stored(mirrored: Settings, tmp_path: Path) -> None:
    folder = half_stored(mirrored)
    assert orphans(mirrored) == []
    (folder.path / "late").unlink()
    stored = tmp_path / "bucket" / "one" / "history.jsonl"
    stored.rename(tmp_path / "moved")
    assert orphans(mirrored) == []
    (tmp_path / "moved").rename(stored)
    (orphan,) = orphans(mirrored)
    assert (orphan.kind, orphan.path) == (prune.COPY, folder.path)
    assert remove([orphan]) == ([orphan], [])
    assert stored.exists()
    assert run_lookup.find(mirrored.storage, "one").status() == "finished"


def test_journal_removed_locally_is_removed_from_the_object_store(mirrored: Settings, tmp_path: Path) -> None:
    half_stored(mirrored, "tracking.jsonl")
    (orphan,) = orphans(mirrored)
    assert orphan.kind == "delivered journal"
    assert (tmp_path / "bucket" / "one" / "tracking.jsonl").exists()
    assert remove([orphan]) == ([orphan], [])
    assert not (tmp_path / "bucket" / "one" / "tracking.jsonl").exists()


def test_folder_of_an_overtaken_driver_is_removed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "one")
    folder = create(settings, "one")
    write(folder, "history.jsonl")
    lose(folder)
    monkeypatch.setattr(socket, "gethostname", lambda: "two")
    there = run_lookup.find(settings.storage, "one")
    there.acquire()
    there.release("finished", 0)
    (orphan,) = orphans(settings)
    assert (orphan.kind, orphan.path) == (prune.OVERTAKEN, folder.path)
    assert remove([orphan]) == ([orphan], [])
    assert run_lookup.find(settings.storage, "one").path == there.path
    assert orphans(settings) == []


def test_folder_of_a_run_resumed_after_the_search_is_not_removed(settings: Settings) -> None:
    folder = create(settings, "one")
    lose(folder)
    found = orphans(settings)
    assert [orphan.path for orphan in found] == [folder.path]
    again = run_lookup.find(settings.storage, "one")
    again.acquire()
    write(again, "history.jsonl")
    again.release("finished", 0)
    assert remove(found) == ([], [])
    assert (folder.path / "history.jsonl").exists()


def test_run_leased_by_another_machine_after_the_search_is_not_removed(mirrored: Settings, tmp_path: Path) -> None:
    folder = half_stored(mirrored, "tracking.jsonl", status="interrupted", code=130)
    found = orphans(mirrored)
    assert [orphan.kind for orphan in found] == ["delivered journal"]
    place = remote.location_of(folder.path)
    assert place is not None
    told = {"format": 1, "token": "theirs", "host": "another", "pid": 1}
    place.write(lease.NAME, json.dumps(told).encode())
    assert remove(found) == ([], [])
    (tmp_path / "bucket" / "one" / lease.NAME).unlink()
    assert remove(found) == (found, [])


def test_folder_removed_during_the_search_is_not_an_orphan(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "another")
        lose(create(settings, "one"))
    opened = records.open_folder

    def removed(path: Path) -> RunFolder:
        folder = opened(path)
        shutil.rmtree(path)
        return folder

    monkeypatch.setattr(records, "open_folder", removed)
    assert orphans(settings) == []


def test_removal_of_an_outdated_copy_keeps_later_files_in_the_storage(mirrored: Settings, tmp_path: Path) -> None:
    storage = remote.mirror_of(f"file://{tmp_path}/bucket", tmp_path / "elsewhere")
    there = records.create(storage, "run", "toy", {}, "orchestrator run toy", "one")
    following = there.start_sync()
    stored = remote.location_of(there.path)
    assert stored is not None
    until(lambda: sync_state.record(stored))
    looked_at = run_lookup.find(mirrored.storage, "one")
    write(there, "history.jsonl")
    there.release("finished", 0)
    assert following.close() is None
    (orphan,) = orphans(mirrored)
    assert remove([orphan]) == ([orphan], [])
    assert not looked_at.path.exists()
    assert (tmp_path / "bucket" / "one" / "history.jsonl").exists()
    assert run_lookup.find(mirrored.storage, "one").status() == "finished"


def test_run_whose_local_record_is_damaged_is_kept_in_the_object_store(mirrored: Settings, tmp_path: Path) -> None:
    folder = half_stored(mirrored)
    (folder.path / "record.json").write_text("")
    (orphan,) = orphans(mirrored)
    assert (orphan.kind, orphan.path) == (prune.DAMAGED, folder.path)
    assert remove([orphan]) == ([orphan], [])
    assert not folder.path.exists()
    assert (tmp_path / "bucket" / "one" / "history.jsonl").exists()
    assert run_lookup.find(mirrored.storage, "one").status() == "finished"


def test_orphan_that_is_already_removed_is_skipped_without_error(settings: Settings) -> None:
    lose(create(settings, "one"))
    found = orphans(settings)
    assert remove(found) == (found, [])
    assert remove(found) == ([], [])


def test_failed_removal_is_reported_and_other_orphans_are_removed(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        folder = create(settings, name, "sweep")
        write(folder, "trials/0")
        folder.release("finished", 0)
    real = shutil.rmtree

    def rmtree(path: Path) -> None:
        if path.parent.name == "first":
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(typer.Exit) as ended:
        clean(yes=True, tracking="none")
    captured = capsys.readouterr()
    assert ended.value.exit_code == FAILED
    assert captured.err == f"{settings.storage / 'first' / 'trials'} could not be removed: Permission denied\n"
    assert captured.out.endswith("1 B removed\n")
    assert [(settings.storage / name / "trials").exists() for name in ("first", "second")] == [True, False]


# MLflow


@pytest.fixture
def running(database: Path) -> Callable[..., str]:
    """A function that creates a tagged run in the embedded store, started ``days`` ago, and returns its id."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")

    def begin(owner: str | None, user: str | None = None, days: float = 2.0, uid: str | None = None) -> str:
        tags = {"mlflow.user": user or records.user()} | ({OWNER: owner} if owner else {})
        tags |= {RECORD_TAG: uid} if uid else {}
        began = round(1000 * (time.time() - days * 86_400))
        return str(client.create_run("0", tags=tags, start_time=began).info.run_id)

    return begin


def test_runs_left_running_are_found_and_killed(running: Callable[..., str], settings: Settings) -> None:
    from mlflow.tracking import MlflowClient

    lost, saving, alive, done = (create(settings, name) for name in ("lost", "saving", "alive", "done"))
    lose(lost)
    saving.provisional_end("interrupted", 130)
    alive.provisional_end("interrupted", 130)
    lose(saving)
    done.release("finished", 0)
    expected = {running("lost"), running("lost", days=0), running("saving"), running("absent")}
    expected |= {running("lost", days=0, uid=lost.record["uid"])}
    others = [
        running("alive"), running("done"), running(None),
        running("absent", user="somebody"), running("absent", days=0.5),
        running("lost", user="somebody", uid="of another storage"),
    ]  # fmt: skip
    found = stale(settings)
    assert {run.run_id for run in found} == expected
    assert prune.kill(settings, found) == (found, [])
    client = MlflowClient(settings.tracking)
    assert {client.get_run(run).info.status for run in expected} == {"KILLED"}
    assert {client.get_run(run).info.status for run in others} == {"RUNNING"}
    assert stale(settings) == []
    del alive


def test_run_with_a_lease_is_not_stale_under_a_wrong_local_clock(
    running: Callable[..., str], mirrored: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(create(mirrored, "one"))
    run = running("one")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert stale(mirrored) == []
    stored = remote.location_of(mirrored.storage / "one")
    assert stored is not None
    stored.remove(lease.NAME)
    assert [one.run_id for one in stale(mirrored)] == [run]


def test_mlflow_run_that_cannot_be_ended_is_reported(
    running: Callable[..., str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    def fail(self: Any, run: str, *_: Any) -> None:
        raise MlflowException("gone\nmore")

    run = running("absent")
    monkeypatch.setattr(MlflowClient, "set_terminated", fail)
    assert prune.kill(settings, stale(settings)) == ([], [f"MLflow run {run} could not be ended: gone"])


# The command ``clean``


def test_clean_lists_orphans_and_removes_them_only_with_yes(
    running: Callable[..., str], settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = create(settings, "one", "sweep")
    write(folder, "trials/00000/checkpoint-00000001/tensors", content="x" * 2048)
    folder.release("finished", 0)
    run = running("absent")
    clean()
    shown = capsys.readouterr().out
    first, second = ([cell.strip() for cell in line.split("  ") if cell] for line in shown.splitlines()[:2])
    assert first == ["2 KiB", "trials' checkpoints of a settled sweep", str(folder.path / "trials")]
    assert second == ["MLflow run left RUNNING: its folder is not here", f"{run} (absent)"]
    assert shown.endswith("2 KiB in all. Nothing is removed yet: add --yes\n")
    assert (folder.path / "trials").exists()

    clean(yes=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["removed"], told["bytes"], [o["run"] for o in told["orphans"]]) == (True, 2048, ["one"])
    assert [r["run_id"] for r in told["runs"]] == [run]
    assert not (folder.path / "trials").exists()
    clean()
    assert capsys.readouterr().out == "Nothing to clean\n"


def test_without_mlflow_the_storage_is_cleaned(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    folder = create(settings, "one", "sweep")
    write(folder, "trials/0")
    folder.release("finished", 0)
    clean(yes=True)
    captured = capsys.readouterr()
    assert "MLflow's runs were not checked: No MLflow answers at http://127.0.0.1:9" in captured.err
    assert captured.out.endswith("1 B removed\n")
    assert not (folder.path / "trials").exists()


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1000, "1000 B"),
        (1536, "1.5 KiB"),
        (1023 * 2**20, "1023 MiB"),
        (5 * 2**30, "5 GiB"),
        (2**42, "4 TiB"),
        (2**52, "4096 TiB"),
    ],
)
def test_sizes_are_formatted_in_binary_units(count: int, said: str) -> None:
    assert prune.size(count) == said
