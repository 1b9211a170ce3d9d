"""Later delivery of what an outage has delayed: while no driver writes to the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.runs import model_upload
from orchestrator.storage import records
from orchestrator.storage.records import open_folder
from orchestrator.storage.settings import resolve
from tests.support.refusals import refused


def test_no_driver_begins_while_the_journal_is_emptied(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it wrote to the journal would be lost."""
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


def test_what_another_sync_has_uploaded_is_not_uploaded_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve()
    folder = records.create(settings.storage, "run", "toy", {}, "orchestrator run toy", "one", owed={})
    folder.release("finished", 0)
    found = open_folder(folder.path)
    folder.update(owed=None)
    monkeypatch.setattr(
        model_upload, "_sync_tracking", lambda settings, folder: [str(folder.record[model_upload.PENDING_MODEL])]
    )
    assert model_upload.sync(settings, found) == "one: None"
