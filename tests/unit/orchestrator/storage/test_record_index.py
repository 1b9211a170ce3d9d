"""Listing the runs of an object storage reads only records that are new, changed or of running runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage import lease, record_index, records, remote, run_lookup, sync_state
from orchestrator.storage.remote import Remote

RUNS = 5


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose records a listing reads from the storage, without the reads of a driver's thread."""
    names: list[str] = []
    real = record_index.records

    def counted(storage: Path, location: Remote, read_one: Callable[[Remote], dict[str, Any] | None]) -> object:
        def noted(folder: Remote) -> dict[str, Any] | None:
            names.append(folder.uri.rpartition("/")[2])
            return read_one(folder)

        return real(storage, location, noted)

    monkeypatch.setattr(record_index, "records", counted)
    return names


@contextmanager
def driven(storage: Path, name: str) -> Iterator[records.RunFolder]:
    """A run that is driven on this machine and stored at the end of the block."""
    if (storage / name).exists():
        folder = records.open_folder(storage / name)
        folder.acquire()
    else:
        folder = records.create(storage, "run", "toy", {}, "orchestrator run toy", name)
    following = folder.start_sync()
    yield folder
    assert following.close() is None


def finished(storage: Path) -> None:
    for number in range(RUNS):
        with driven(storage, f"run-{number}") as folder:
            folder.release("finished", 0)


def statuses(storage: Path) -> dict[str, str]:
    return {folder.id: folder.record["status"] for folder in run_lookup.folders(storage)}


def test_settled_records_are_read_once(machine: Callable[[str], Path], read: list[str]) -> None:
    finished(machine("one"))
    read.clear()
    expected = dict.fromkeys((f"run-{number}" for number in range(RUNS)), "finished")
    assert statuses(machine("two")) == expected
    assert sorted(read) == sorted(expected)
    read.clear()
    assert statuses(machine("two")) == expected
    assert read == []


def test_a_record_that_is_stored_again_is_read_again(machine: Callable[[str], Path], read: list[str]) -> None:
    one = machine("one")
    finished(one)
    statuses(machine("two"))
    with driven(one, "run-3") as folder:
        folder.update(note="driven again")
        deliver = sync_state.manifest(folder.path)
        sync_state.deliver(folder.path, Remote(f"{remote.uri_of(one)}/run-3"), dict(deliver[1]))
        read.clear()
        assert statuses(machine("two"))["run-3"] == "running"
        assert statuses(machine("two"))["run-3"] == "running"
        assert read == ["run-3", "run-3"], "the record of a running run is read each time"
        folder.release("failed", 1)
    read.clear()
    assert statuses(machine("two"))["run-3"] == "failed"
    assert read == ["run-3"]


def test_runs_absent_from_the_index_are_read_and_added_to_it(
    machine: Callable[[str], Path], bucket: Path, read: list[str]
) -> None:
    finished(machine("one"))
    shutil.rmtree(bucket / record_index.FOLDER)
    for _ in range(2):  # the second listing knows the records' times and keeps them
        read.clear()
        assert set(statuses(machine("two")).values()) == {"finished"}
        assert len(read) == RUNS
    read.clear()
    assert len(statuses(machine("two"))) == RUNS
    assert read == []


def test_damaged_index_line_is_read_again_and_removed_runs_are_left_out(
    machine: Callable[[str], Path], bucket: Path, read: list[str]
) -> None:
    finished(machine("one"))
    two = machine("two")
    statuses(two)
    file = two / record_index.FILE
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0][:40], "[]", "null", *lines[1:]]))
    shutil.rmtree(bucket / "run-1")
    read.clear()
    assert sorted(statuses(two)) == ["run-0", "run-2", "run-3", "run-4"]
    assert len(read) == 1
