"""The writer while its server is down, hangs, is killed or comes back, and while the disk is full."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.tracking import tracker as tracking
from orchestrator.tracking.tracker import JOURNAL, Tracker
from tests.support.tracked import NOWHERE, OWNER, Server, abandon, expected, full_disk, metrics, query, rows, statuses
from tests.support.waiting import FOR_EVER, HANG_SECONDS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Iterator[Server]:
    """Started once for the module, because it takes seconds to answer."""
    running = Server(tmp_path_factory.mktemp("server"), initialised_store)
    yield running
    running.kill()


def test_outage_does_not_block_training_and_is_reported_on_close(
    open_tracker: Callable[..., Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any call that waited for MLflow would never return."""
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (FOR_EVER,))
    monkeypatch.setattr(tracking, "CONNECT_SECONDS", FOR_EVER)
    tracker = open_tracker(uri=NOWHERE)
    tracker.start(OWNER, "run", params={"lr": 0.1})
    tracker.await_connection()
    for epoch in range(1, 201):
        tracker.log(OWNER, rows(epoch, epoch))
    assert not tracker.flush(timeout=0.01)
    with pytest.raises(UserError, match=r"MLflow does not answer: got .*--tracking") as caught:
        tracker.run_id(OWNER, timeout=0.01)
    assert caught.value.code == UNAVAILABLE
    told = tracker.close(timeout=0)
    assert told is not None
    for word in ("Not everything was sent to MLflow (", str(tmp_path / JOURNAL), f"orchestrator sync {OWNER}"):
        assert word in told
    assert "\n" not in told
    kept = [json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines()]
    assert [operation["op"] for operation in kept] == ["start"] + ["log"] * 200


def test_the_journal_is_delivered_by_the_next_process(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    away = open_tracker(uri=NOWHERE)
    away.start(OWNER, "run", params={"lr": 0.1})
    away.log(OWNER, rows(1, 4))
    away.end(OWNER, "KILLED")
    assert away.close(timeout=0)
    back = open_tracker(resuming=True)
    back.start(OWNER, "run", params={"lr": 0.1})
    back.log(OWNER, rows(3, 6))
    back.end(OWNER, "FINISHED")
    assert back.close() is None
    assert metrics(database) == expected(rows(1, 6))
    assert statuses(database) == {OWNER: "FINISHED"}
    assert not (tmp_path / JOURNAL).exists()


def test_journal_with_partial_lines_is_delivered_after_repeated_kills(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    for first in (1, 3, 5):
        away = open_tracker(uri=NOWHERE, resuming=first > 1)
        away.start(OWNER, "run", params={"lr": 0.1})
        away.log(OWNER, rows(first, first + 1))
        abandon(away)
        with (tmp_path / JOURNAL).open("a") as journal:
            journal.write('{"op": "log", "key": "toy-2026')
    assert open_tracker(resuming=True).close() is None
    assert metrics(database) == expected(rows(1, 6))


@pytest.mark.faults
def test_a_server_that_is_killed_and_comes_back_gets_every_value_once(
    server: Server, open_tracker: Callable[..., Tracker], tmp_path: Path
) -> None:
    tracker = open_tracker(uri=server.wait())
    tracker.start(OWNER, "run", params={"lr": 0.1})
    tracker.log(OWNER, rows(1, 50))
    assert tracker.flush()
    for epoch in range(51, 151):
        if epoch == 70:
            server.kill()
        if epoch == 120:
            assert tracker.unsent >= 50, "the epochs must wait in the journal"
            server.start()
        tracker.log(OWNER, rows(epoch, epoch))
        time.sleep(0.002)
    server.wait()
    tracker.end(OWNER, "FINISHED")
    assert tracker.close(timeout=HANG_SECONDS) is None
    assert metrics(server.database) == expected(rows(1, 150))
    assert statuses(server.database) == {OWNER: "FINISHED"}
    assert not (tmp_path / JOURNAL).exists()


@pytest.mark.faults
def test_resumed_run_has_each_step_once_on_a_server(server: Server, open_tracker: Callable[..., Tracker]) -> None:
    key = f"{OWNER}/0"
    for first, last in ((1, 40), (31, 60)):
        tracker = open_tracker(uri=server.wait(), resuming=first > 1)
        tracker.start(key, "trial", params={"lr": 0.1})
        tracker.log(key, rows(first, last))
        tracker.end(key, "FINISHED")
        assert tracker.close(timeout=HANG_SECONDS) is None
    assert metrics(server.database, key) == expected(rows(1, 60))
    assert statuses(server.database)[key] == "FINISHED"


@pytest.mark.faults
def test_hanging_server_causes_no_duplicate_run(
    server: Server, open_tracker: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = open_tracker(uri=server.wait())
    tracker.start(f"{OWNER}/before", "before", params={})
    assert tracker.flush()
    server.pause()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    try:
        tracker.start(f"{OWNER}/hung", "hung", params={"lr": 0.1})
        tracker.log(f"{OWNER}/hung", rows(1, 3))
        assert not tracker.flush(timeout=2.5)
    finally:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{HANG_SECONDS:.0f}")  # no short limit for answers
        server.go_on()
    assert tracker.close(timeout=HANG_SECONDS) is None
    assert f"{OWNER}/hung" in statuses(server.database), "the run is missing"
    assert metrics(server.database, f"{OWNER}/hung") == expected(rows(1, 3))


@pytest.mark.faults
def test_all_values_reach_the_server_while_the_disk_is_full(
    server: Server, open_tracker: Callable[..., Tracker], tmp_path: Path
) -> None:
    key = f"{OWNER}/full"
    tracker = open_tracker(uri=server.wait())
    tracker.start(key, "full", params={})
    assert tracker.flush()
    with full_disk(tmp_path / JOURNAL, room=20):
        tracker.log(key, rows(1, 20))
        tracker.end(key, "FINISHED")
        assert tracker.flush()
    assert tracker.close() is None
    assert metrics(server.database, key) == expected(rows(1, 20))
    assert statuses(server.database)[key] == "FINISHED"


def test_number_of_reports_dropped_on_a_full_disk_is_reported_on_close(
    open_tracker: Callable[..., Tracker], tmp_path: Path
) -> None:
    tracker = open_tracker(uri=NOWHERE)
    with full_disk(tmp_path / JOURNAL):
        tracker.start(OWNER, "run", params={})
        for epoch in range(1, 21):
            tracker.log(OWNER, rows(epoch, epoch))
        told = tracker.close(timeout=0)
    assert told is not None
    assert "21 reports for MLflow were dropped (File too large)" in told
    assert "\n" not in told


@pytest.mark.faults
def test_a_request_that_is_too_large_is_sent_in_parts(server: Server, open_tracker: Callable[..., Tracker]) -> None:
    key = f"{OWNER}/large"  # a server takes one million bytes
    tracker = open_tracker(uri=server.wait())
    tracker.start(key, "large", params={f"p{number:03d}": "ü" * 5900 for number in range(60)})
    assert tracker.close(timeout=HANG_SECONDS) is None
    found = query(server.database, "select count(*), min(length(value)) from params where key like 'p0%'")
    assert found == [(60, 5900)]
