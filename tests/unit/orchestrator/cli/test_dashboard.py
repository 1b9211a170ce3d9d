"""The dashboard of a sweep works on a copy of its journal, which follows the original and never changes it."""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from orchestrator.cli.dashboard import JournalCopy
from orchestrator.errors import UNAVAILABLE, USAGE
from orchestrator.search.journal import JOURNAL, open_study
from tests.support import finished
from tests.support.commands import Command, typed
from tests.support.ports import free_port

MISSING = importlib.util.find_spec("optuna_dashboard") is None


def test_journal_copy_follows_the_original_until_the_copy_is_changed(home: Path, tmp_path: Path) -> None:
    folder = finished.sweep(home / "storage", "s", [[0.5], [0.2]]).path
    copy = JournalCopy(folder / JOURNAL, tmp_path / "copy.jsonl")
    try:
        assert copy.file.read_bytes() == (folder / JOURNAL).read_bytes()
        open_study(folder).add_trial(optuna.trial.create_trial(value=0.1))
        with (folder / JOURNAL).open("ab") as half:
            half.write(b'{"op_code": 4')
        assert copy.follow()
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(copy.file)))
        study = optuna.load_study(study_name="sweep", storage=storage)  # as in the guide
        assert [trial.value for trial in study.trials] == [0.5, 0.2, 0.1]
        before = (folder / JOURNAL).read_bytes()
        optuna.delete_study(study_name="sweep", storage=storage)
        assert not copy.follow()
        assert (folder / JOURNAL).read_bytes() == before
    finally:
        copy.close()


@pytest.mark.tools
@pytest.mark.skipif(MISSING, reason="optuna-dashboard is not installed here: make test-tools lays it over")
def test_the_page_shows_the_trials_and_deletes_only_the_copy(home: Path) -> None:
    folder = finished.sweep(home / "storage", "s", [[0.5], [0.2], None]).path
    before = (folder / JOURNAL).read_bytes()
    port = free_port()
    served = Command(home, "dashboard", "s", "--port", str(port))

    def ask(path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")

    def studies() -> Any:
        try:
            return ask("studies")
        except OSError:
            return None

    try:
        (study,) = served.until(studies)["study_summaries"]
        assert study["study_name"] == "sweep"
        shown = ask(f"studies/{study['study_id']}?after=0")
        assert [trial["state"] for trial in shown["trials"]] == ["Complete", "Complete", "Fail"]
        ask(f"studies/{study['study_id']}", "DELETE")
        assert ask("studies")["study_summaries"] == []
        assert (folder / JOURNAL).read_bytes() == before
    finally:
        served.terminate()
    assert served.end() == 0, served.text()
    assert f"Trials of s, a copy: http://127.0.0.1:{port}" in served.text()


def test_missing_package_sweep_or_trials_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna_dashboard" else real(name))
    missing = typed(home, "dashboard", "s")
    assert missing.returncode == UNAVAILABLE
    assert "Install ray-experiment-orchestrator[dashboard]" in missing.stderr
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: real("optuna") if name == "optuna_dashboard" else real(name)
    )
    unknown = typed(home, "dashboard", "s")
    assert (unknown.returncode, "There is no sweep yet" in unknown.stderr) == (USAGE, True), unknown.stderr
    (finished.sweep(home / "storage", "s", [[0.5]]).path / JOURNAL).unlink()
    empty = typed(home, "dashboard", "s")
    assert (empty.returncode, "s has no trial yet" in empty.stderr) == (USAGE, True), empty.stderr
