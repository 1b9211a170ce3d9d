"""Delivery of delayed models and results by ``sync`` after an outage."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runs import model_upload
from orchestrator.storage import lease, records, remote, run_lookup
from orchestrator.storage.records import RunFolder, open_folder
from orchestrator.storage.settings import resolve
from orchestrator.tracking.tracker import JOURNAL
from tests.support.refusals import refused

GONE = 2**22 + 1
"""A pid above that of any process."""


def test_driver_cannot_begin_during_a_sync(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal entries of a driver that begins during a sync would be lost."""
    settings = resolve()
    folder = records.create(settings.storage, "run", "toy", {}, "orchestrator run toy", "one")
    refused(lambda: model_upload.sync(settings, folder), "one is still running and uploads its own results")
    folder.release("interrupted", 130)

    def upload(*of: Any) -> list[str]:
        refused(open_folder(folder.path).acquire, "one is being driven by another process")
        return ["uploaded"]

    monkeypatch.setattr(model_upload, "_sync_tracking", upload)
    assert model_upload.sync(settings, open_folder(folder.path)) == "one: uploaded"
    open_folder(folder.path).acquire()


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunFolder, Path]:
    """An interrupted run ``one`` that is stored in full, and the storage as another machine sees it."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    here, there = (remote.mirror_of(f"file://{tmp_path}/bucket", tmp_path / name) for name in ("here", "there"))
    folder = records.create(here, "run", "toy", {}, "orchestrator run toy", "one")
    following = folder.start_sync()
    folder.release("interrupted", 130)
    assert following.close() is None
    return folder, there


def test_no_driver_of_another_machine_begins_while_the_journal_is_sent(
    stored: tuple[RunFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would log the epochs since its checkpoint too, and each would be in MLflow twice."""
    folder, there = stored
    (folder.path / JOURNAL).touch()
    again = run_lookup.find(there, "one").fetch()

    def send(*of: Any, **how: Any) -> SimpleNamespace:
        refused(again.acquire, "one is being driven by another process")
        (folder.path / JOURNAL).unlink()
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(model_upload, "open_tracker", send)
    monkeypatch.setattr(model_upload.preflight, "tracking", lambda settings: None)
    assert model_upload.sync(resolve(), open_folder(folder.path)).startswith("one: uploaded")
    again.acquire()


def test_model_uploaded_by_another_sync_is_not_uploaded_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve()
    folder = records.create(settings.storage, "run", "toy", {}, "orchestrator run toy", "one", owed={})
    folder.release("finished", 0)
    found = open_folder(folder.path)
    folder.update(owed=None)
    monkeypatch.setattr(
        model_upload, "_sync_tracking", lambda settings, folder: [str(folder.record[model_upload.PENDING_MODEL])]
    )
    assert model_upload.sync(settings, found) == "one: None"


def test_undelivered_model_is_kept_and_the_message_names_the_sync_command(home: Path) -> None:
    """If MLflow answers again before the tracker is closed, the tracker prints no message."""
    folder = records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")
    said: list[str] = []
    console, tracker = SimpleNamespace(say=said.append), SimpleNamespace(flush=lambda: False)
    session: Any = SimpleNamespace(folder=folder, console=console, tracker=tracker)
    assert model_upload.deliver(session, folder.path, "kept") is None
    assert said == [
        "The model is not logged, since MLflow does not answer; it is kept, deliver it with: orchestrator sync one"
    ]
    assert folder.record[model_upload.PENDING_MODEL] == {"outcome": ".", "register": "kept"}


@pytest.mark.parametrize("host", ["another", socket.gethostname()])
def test_sync_reports_files_not_stored_of_a_run_continued_elsewhere(
    host: str, stored: tuple[RunFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, there = stored
    (folder.path / "late").write_text("x")
    place = remote.location_of(folder.path)
    assert place is not None
    told = {"format": 1, "token": "ours", "host": host, "pid": GONE, "generation": 1}
    place.write(lease.NAME, json.dumps(told).encode())  # it expires
    monkeypatch.setattr(lease, "SECONDS", 0.0)
    again = run_lookup.find(there, "one").fetch()
    again.acquire()
    following = again.start_sync()
    again.release("finished", 0)
    assert following.close() is None
    said = model_upload.sync(resolve({"tracking": "none"}), run_lookup.find(folder.path.parent, "one"))
    assert said == "one: another driver has continued it; what only the copy here has is not stored"
