"""Sessions: every end of a run is recorded in its folder and its MLflow run, also after signals."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.cluster.interrupts import keep_sigterm_handler
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, INTERRUPTED, UNAVAILABLE, Interrupted, RunFailed, UserError
from orchestrator.runs import session
from orchestrator.runs.session import Session
from orchestrator.storage import records, run_lookup
from orchestrator.storage.names import RECORD
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import resolve
from tests.support.tracked import statuses, tags


@pytest.fixture
def folder(home: Path) -> RunFolder:
    return records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")


def opened(folder: RunFolder, tracking: str | None = "none") -> Session:
    settings = resolve({"tracking": tracking})
    return Session(folder, settings, Console(), resuming=False, params={}, tags={})


def ended(folder: RunFolder) -> tuple[str, Any, Any]:
    again = run_lookup.find(folder.path.parent, folder.id)
    return again.status(), again.record["exit_code"], again.record.get("error")


def test_session_records_the_end_that_was_set(folder: RunFolder) -> None:
    with opened(folder) as running:
        assert ended(folder)[0] == "running"
        running.set_end("finished", DONE)
    assert ended(folder) == ("finished", DONE, None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("broken"), ("failed", FAILED, "ValueError: broken")),
        (UserError("No such thing", code=3), ("failed", 3, "No such thing.")),
        (Interrupted("orchestrator run --resume one"), ("interrupted", INTERRUPTED, None)),
        (KeyboardInterrupt(), ("interrupted", INTERRUPTED, None)),
    ],
)
def test_exception_is_recorded_as_end_of_the_run_and_propagates(
    error: BaseException, expected: Any, folder: RunFolder
) -> None:
    with pytest.raises(type(error)), opened(folder):
        raise error
    assert ended(folder) == expected


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_signal_is_recorded_at_once_and_the_true_end_replaces_it(database: Path) -> None:
    """Ray kills a job 3 s after its SIGTERM, so the record must not wait until the body checks for a stop."""
    folder = records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")
    with opened(folder, None) as running:
        assert running.tracker is not None
        running.tracker.start("one/0", "trial-0", params={}, parent="one")
        running.tracker.start("one/1", "trial-1", params={}, parent="one")
        running.tracker.end("one/1", "FINISHED")
        signal.raise_signal(signal.SIGTERM)
        assert soon(lambda: json.loads((folder.path / RECORD).read_text())["status"] == "interrupted")
        assert soon(lambda: statuses(database).get("one/0") == "KILLED")
        assert statuses(database) == {"one": "KILLED", "one/0": "KILLED", "one/1": "FINISHED"}
        assert ended(folder)[:2] == ("running", INTERRUPTED), "a run that is still saving is running"
        running.tracker.end("one/0", "FINISHED")
        running.set_end("finished", DONE)
    assert ended(folder) == ("finished", DONE, None)
    assert statuses(database) == {"one": "FINISHED", "one/0": "FINISHED", "one/1": "FINISHED"}


def test_a_dataset_is_described_once_a_session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the files of a large dataset would be examined for each trial. A later session examines them again."""
    folder = records.create(resolve().storage, "run", "recommender", {}, "orchestrator run recommender", "one")
    described: list[str] = []
    describe = session.lineage.dataset
    monkeypatch.setattr(session.lineage, "dataset", lambda *of: described.append(of[0]["dataset"]) or describe(*of))
    for _ in range(2):
        running = opened(folder)
        running.tracker = Mock()
        for key in ("one", "one/0"):
            running.trained_on(key, {"dataset": "synthetic"})
        assert [call.args[0] for call in running.tracker.input.call_args_list] == ["one", "one/0"]
    assert described == ["synthetic"] * 2


def test_signal_before_the_tracker_is_opened_ends_the_mlflow_run(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = session.open_tracker

    def pressed(*words: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return whole(*words, **named)

    monkeypatch.setattr(session, "open_tracker", pressed)
    folder = records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")
    with opened(folder, None) as running:
        assert soon(lambda: statuses(database) == {"one": "KILLED"})
        running.set_end("interrupted", INTERRUPTED)
    assert ended(folder)[:2] == ("interrupted", INTERRUPTED)


def test_mlflow_description_contains_state_and_resume_command(database: Path) -> None:
    folder = records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")

    def description() -> str:
        return tags(database, "one").get("mlflow.note.content", "") if statuses(database) else ""

    def fail() -> None:
        assert soon(lambda: description().startswith("Running."))
        assert "orchestrator run --resume one" in description()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), opened(folder, None):
        fail()
    assert description().startswith("Failed: ValueError: broken.")
    assert "orchestrator run --resume one" in description()


def break_after_a_signal(error: Exception) -> None:
    signal.raise_signal(signal.SIGTERM)
    raise error


def test_error_after_a_signal_is_recorded_as_interruption(folder: RunFolder) -> None:
    """A signal to the whole process group ends Ray too."""
    with pytest.raises(Interrupted), opened(folder):
        break_after_a_signal(RunFailed("one", "its worker was lost"))
    assert ended(folder) == ("interrupted", INTERRUPTED, None)
    assert "its worker was lost" in folder.log.read_text()


def test_full_disk_after_a_signal_raises_user_error_and_is_a_failure(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="No space"), opened(folder):
        break_after_a_signal(OSError(28, "No space left on device"))
    assert ended(folder)[:2] == ("failed", UNAVAILABLE)


def end_without_its_folder(folder: RunFolder, error: BaseException | None) -> None:
    with folder.guarded(), opened(folder) as running:
        shutil.rmtree(folder.path)
        running.set_end("finished", DONE)
        if error:
            raise error


@pytest.mark.parametrize(
    "error",
    [
        None,
        FileNotFoundError(2, "No such file or directory", "history.jsonl"),
        UserError("The storage /s cannot be written", got="No such file or directory"),
        Interrupted("orchestrator run --resume one"),
    ],
)
def test_removed_run_folder_is_named_in_the_error(error: Exception | None, folder: RunFolder) -> None:
    message = f"^one failed: its folder {folder.path} was removed$"
    with pytest.raises(RunFailed, match=message):
        end_without_its_folder(folder, error)
    assert not folder.path.exists()


@pytest.mark.parametrize("error", [UserError("Unknown metric"), RunFailed("one", "ValueError: the third layer")])
def test_an_error_that_a_removed_folder_does_not_explain_is_reported(error: Exception, folder: RunFolder) -> None:
    with pytest.raises(type(error), match=f"^{error}$"):
        end_without_its_folder(folder, error)


def test_of_a_removed_folder_of_an_overtaken_driver_the_takeover_is_reported(folder: RunFolder) -> None:
    later = folder.path.with_name("one@1")
    shutil.copytree(folder.path, later)
    with pytest.raises(
        RunFailed, match=r"^one failed: another driver has taken it over, and its folder .* was removed"
    ):
        end_without_its_folder(folder, RunFailed("one", "ValueError: the third layer"))
    assert later.exists()


def test_sigterm_during_the_connection_to_ray_names_the_resume_command(folder: RunFolder) -> None:
    def ray_init() -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    with (
        pytest.raises(Interrupted, match="Continue with: orchestrator run --resume one"),
        opened(folder),
        keep_sigterm_handler(),
    ):
        ray_init()
    assert ended(folder) == ("interrupted", INTERRUPTED, None)
    assert not folder.has_live_driver()


@pytest.mark.parametrize("step", ["provenance.sources", "provenance.write", "open_tracker", "Interrupts.__enter__"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_error_while_a_session_is_entered_is_recorded_as_its_end(
    step: str, error: BaseException, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(f"orchestrator.runs.session.{step}", fail)
    full = isinstance(error, OSError)
    with pytest.raises(UserError if full else type(error)), opened(folder):
        pytest.fail("it was not entered")
    assert ended(folder)[:2] == (("failed", UNAVAILABLE) if full else ("interrupted", INTERRUPTED))
    assert not folder.has_live_driver()
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_before_signals_are_handled_names_the_resume_command(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.runs.session.Interrupts.__enter__", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises((Interrupted, KeyboardInterrupt)) as caught, folder.guarded(), opened(folder):
        pytest.fail("it was not entered")
    assert str(caught.value).endswith("Continue with: orchestrator run --resume one")
    assert ended(folder)[:2] == ("interrupted", INTERRUPTED)


@pytest.mark.parametrize("step", ["provenance.sources", "provenance.write", "open_tracker"])
def test_ctrl_c_while_a_session_is_entered_requests_a_clean_stop(
    step: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session is entered; its body can check for the requested stop and end with everything closed."""
    module, _, name = step.rpartition(".")
    owner = getattr(session, module) if module else session
    whole = getattr(owner, name)

    def pressed(*words: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return whole(*words, **named)

    monkeypatch.setattr(owner, name, pressed)
    with opened(folder) as running:
        assert running.interrupts.stop_requested()
        running.set_end("interrupted", INTERRUPTED)
    assert ended(folder)[:2] == ("interrupted", INTERRUPTED)
    assert "Press Ctrl-C again" in capsys.readouterr().out


def test_mlflow_run_is_failed_if_the_session_cannot_be_entered(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    def fail(*_: Any) -> None:
        raise OSError("no such device")

    folder = records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")
    monkeypatch.setattr(session.SystemMetrics, "__enter__", fail)
    with pytest.raises(OSError, match="no such device"), opened(folder, None):
        pytest.fail("it was not entered")
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("toy")
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["FAILED"]


def test_overtaken_driver_does_not_end_the_mlflow_run_of_its_successor(database: Path) -> None:
    folder = records.create(resolve().storage, "run", "toy", {}, "orchestrator run toy", "one")
    with opened(folder, None) as running:
        assert running.tracker is not None
        assert running.tracker.flush()
        successor = folder.path.with_name("one@2")
        successor.mkdir()
        (successor / RECORD).write_text((folder.path / RECORD).read_text())
        running.set_end("interrupted", INTERRUPTED)
    assert statuses(database) == {"one": "RUNNING"}
