"""The lease of a run: one driver at a time, valid for a minute by the clock of the storage."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.errors import USAGE, UserError
from orchestrator.storage import lease
from orchestrator.storage.lease import Lease
from orchestrator.storage.remote import Remote
from tests.support.waiting import until


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    return Remote(f"file://{tmp_path}/run")


def held(place: Remote, folder: Path, *, host: str = "another", pid: int | None = None, age: float = 0) -> None:
    """Write the lease of another driver, renewed ``age`` seconds ago."""
    told = {"format": 1, "token": "theirs", "host": host, "pid": pid or os.getpid()}
    place.write(lease.NAME, json.dumps(told).encode())
    moment = time.time() - age
    os.utime(folder / "run" / lease.NAME, (moment, moment))


def test_lease_is_taken_renewed_and_released(place: Remote) -> None:
    ours = Lease(place)
    ours.take()
    assert lease.valid(place)
    found = lease.holder(place)
    assert found is not None
    assert (found.token, found.pid) == (ours.token, os.getpid())
    assert ours.renew_or_lose()
    ours.release()
    assert lease.holder(place) is None
    assert not lease.valid(place)


def test_lease_is_renewed_while_it_is_held_and_then_released(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    file = tmp_path / "run" / lease.NAME
    with lease.holding(place):
        before = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns > before)
    assert lease.holder(place) is None


def test_second_driver_is_refused_the_lease(place: Remote, tmp_path: Path) -> None:
    held(place, tmp_path, pid=7)
    with pytest.raises(UserError, match="run is being driven by another process: got pid 7 on another") as caught:
        Lease(place).take()
    assert caught.value.code == USAGE
    assert "its lease ends in" in str(caught.value)
    assert "theirs" in place.read(lease.NAME).decode()  # type: ignore[union-attr]


@pytest.mark.parametrize(("age", "free"), [(59, False), (61, True)])
def test_lease_ends_a_minute_after_its_last_renewal(
    age: float, free: bool, place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(place, tmp_path)
    written = (tmp_path / "run" / lease.NAME).stat().st_mtime
    monkeypatch.setattr(time, "time", lambda: written + age)
    monkeypatch.setattr(Remote, "now", lambda place: time.time())
    assert lease.valid(place) is not free
    if free:
        Lease(place).take()
    else:
        with pytest.raises(UserError):
            Lease(place).take()


def test_wrong_local_clock_does_not_end_a_valid_lease(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(place, tmp_path, age=10)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    with pytest.raises(UserError, match="driven by another process"):
        Lease(place).take()


@pytest.mark.parametrize("ahead", [-600, 600])
def test_a_driver_is_found_by_a_machine_whose_clock_is_wrong(
    ahead: float, place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(place, tmp_path, age=10)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    assert lease.valid(place)
    assert [file.name for file in (tmp_path / "run").iterdir()] == [lease.NAME]


def test_a_lease_that_expired_long_ago_needs_no_write(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(place, tmp_path, age=7200)
    monkeypatch.setattr(Remote, "now", lambda place: pytest.fail("the storage was written to"))
    assert not lease.valid(place)


def test_lease_of_a_dead_process_on_this_machine_is_free_at_once(place: Remote, tmp_path: Path) -> None:
    import socket

    dead = subprocess.Popen(["true"])
    dead.wait()
    held(place, tmp_path, host=socket.gethostname(), pid=dead.pid)
    assert not lease.valid(place)
    Lease(place).take()


def test_lease_of_another_machine_is_valid_though_its_pid_is_dead_here(place: Remote, tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    held(place, tmp_path, host="another", pid=dead.pid)
    assert lease.valid(place)
    with pytest.raises(UserError, match=f"got pid {dead.pid} on another"):
        Lease(place).take()


def test_lease_of_another_machine_with_the_same_name_is_valid(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with monkeypatch.context() as there:
        there.setattr(lease, "_kernel", lambda: "another start")
        there.setattr(os, "getpid", lambda: dead.pid)
        Lease(place).take()
    assert lease.valid(place)


def test_lease_of_an_earlier_version_has_generation_0(place: Remote, tmp_path: Path) -> None:
    held(place, tmp_path, age=70)
    found = lease.holder(place)
    assert found is not None
    assert found.generation == 0
    ours = Lease(place)
    ours.take()
    assert ours.generation == 1
    assert json.loads(place.read(lease.NAME) or b"{}")["generation"] == 1
    held(place, tmp_path)  # a driver of an earlier version takes over
    assert not ours.renew_or_lose()


@pytest.mark.parametrize(("generation", "kept"), [(1, True), (2, False), (3, False)])
def test_lease_is_lost_only_to_an_equal_or_later_generation(generation: int, kept: bool, place: Remote) -> None:
    ours = Lease(place)
    ours.take(above=1)
    woken = Lease(place)
    woken.generation = generation
    woken.renew()
    assert ours.renew_or_lose() is kept


def test_first_of_two_simultaneous_lease_writers_is_refused(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: held(place, tmp_path))  # while the first writer waits
    with pytest.raises(UserError, match="driven by another process"):
        Lease(place).take()


def test_lease_that_was_taken_over_is_neither_renewed_nor_released(place: Remote, tmp_path: Path) -> None:
    ours = Lease(place)
    ours.take()
    held(place, tmp_path)
    assert not ours.renew_or_lose()
    ours.release()
    assert lease.valid(place)


def test_take_raises_os_error_when_the_storage_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        Lease(Remote(f"file://{tmp_path}/file")).take()


def test_damaged_lease_can_be_taken(place: Remote) -> None:
    place.write(lease.NAME, b"{")
    Lease(place).take()
    assert lease.valid(place)
