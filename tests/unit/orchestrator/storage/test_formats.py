"""Files of earlier formats are read, or refused in one sentence by every command that would use them.

``tests/recorded/format-1`` and ``format-2`` were left by killed drivers, with checkpoints of these formats, and
``finished`` is a run and a sweep at their end. Formats 0 and 99 are invented.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.engine import checkpoint
from orchestrator.errors import DONE, USAGE, UserError
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import resolve
from tests.recorded.record import HERE, SPACE, STORAGE
from tests.support import tracked
from tests.support.commands import SPACES

FORMATS = [0, 99]


@pytest.fixture
def recorded(home: Path) -> Callable[..., Path]:
    """Copies a recorded run or sweep into this test's storage."""

    def place(name: str, form: int | None = 1) -> Path:
        folder = resolve().storage / name
        shutil.copytree(HERE / (f"format-{form}" if form else "finished") / name, folder)
        for file in folder.glob("*.json"):
            text = file.read_text().replace(SPACE, str(SPACES)).replace(STORAGE, str(folder.parent))
            file.write_text(text)
        return folder

    return place


def change(file: Path, **values: Any) -> None:
    """Change values in the first line of a file of JSON lines, or in a whole JSON file."""
    text = file.read_text()
    first, rest = (text, "") if file.suffix == ".json" else text.split("\n", 1)
    file.write_text(json.dumps(json.loads(first) | values) + ("\n" + rest if rest else ""))


def orchestrator(line: str) -> int:
    return app.run(line.split())


def epochs(folder: Path) -> list[int]:
    rows = (json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines())
    return sorted({row["epoch"] for row in rows if "train/loss" in row})


@pytest.mark.parametrize("form", checkpoint.READ)
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_run_and_sweep_of_an_earlier_format_are_resumed(
    kind: str, form: int, recorded: Callable[..., Path], clock: Any, toy_workload: Any
) -> None:
    folder = recorded(kind, form)
    (found,) = folder.rglob("checkpoint.json")
    assert json.loads(found.read_text())["format"] == form
    assert checkpoint.read(found.parent).epoch > 0
    (folder / "tracking.jsonl").unlink(missing_ok=True)  # tracking was off
    named = f" --space {SPACES}:space" if kind == "sweep" else ""  # this home does not trust the space yet
    assert orchestrator(f"{kind} --resume {kind}{named}") == DONE
    ended = run_lookup.find(folder.parent, kind)  # from format 2 on in a generation's folder: the host is unknown
    assert (ended.record["status"], ended.record["format"], ended.record["holds"]) == ("finished", 1, 2)
    if kind == "run":
        assert epochs(ended.path) == list(range(1, 31))
    else:
        assert [row["state"] for row in json.loads((ended.path / "trials.json").read_text())] == ["complete"] * 2


def test_a_recorded_journal_is_delivered(
    recorded: Callable[..., Path], database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded("run")
    change(folder / "record.json", tracking=f"sqlite:///{database}")
    assert orchestrator("sync run") == DONE
    assert "uploaded" in capsys.readouterr().out
    assert tracked.metrics(database, "run") == [("train/loss", 1, 0.5, 1_700_000_001_000)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("line", ["run --resume run", "status run", "logs run", "sync run", "reproduce run run"])
def test_record_of_another_format_is_refused_by_every_command(
    line: str, form: int, recorded: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded("run")
    change(folder / "record.json", format=form)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert orchestrator(line) == USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert f"The record of {folder} has another format: got {form}; allowed: 1" in said
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", FORMATS)
def test_a_sweep_of_another_format_is_refused(
    form: int, recorded: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded("sweep")
    change(folder / "record.json", format=form)
    assert orchestrator("sweep --resume sweep") == USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert f"has another format: got {form}; allowed: 1" in said


@pytest.mark.parametrize("kind", ["run", "sweep"])
@pytest.mark.parametrize("part", ["spec", "options"])
def test_resume_with_a_setting_of_a_later_version_is_refused(
    part: str, kind: str, recorded: Callable[..., Path], toy_workload: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(kind, 2)
    spec = json.loads((folder / "record.json").read_text())["spec"]
    of_spec = spec["experiment" if kind == "run" else "sweep"]
    (of_spec["resources"] if part == "spec" else spec["options"])["later"] = 1
    change(folder / "record.json", spec=spec)
    assert orchestrator(f"status {kind}") == DONE
    assert orchestrator(f"{kind} --resume {kind}") == USAGE
    said = capsys.readouterr().err.splitlines()[-1]
    had = f"The spec of {kind} has settings" if part == "spec" else f"{kind} has options"
    got = "resources.later" if part == "spec" else "later"
    assert said == f"error: {had} that this version does not know: got {got}. Use the version that wrote it."


@pytest.mark.parametrize("form", FORMATS)
def test_a_checkpoint_of_another_format_is_refused(
    form: int, recorded: Callable[..., Path], toy_workload: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded("run")
    (folder / "tracking.jsonl").unlink()
    (found,) = folder.rglob("checkpoint.json")
    change(found, format=form)
    with pytest.raises(UserError, match=f"has another format: got {form}; allowed: 1 or 2"):
        checkpoint.latest(found.parent.parent)
    assert orchestrator("run --resume run") == USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert f"The checkpoint {found.parent} has another format: got {form}; allowed: 1 or 2" in said


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("line", ["sync run", "run --resume run"])
def test_a_tracking_journal_of_another_format_is_refused_and_kept(
    line: str,
    form: int,
    recorded: Callable[..., Path],
    database: Path,
    toy_workload: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = recorded("run")
    journal = folder / "tracking.jsonl"
    change(folder / "record.json", tracking=f"sqlite:///{database}")
    change(journal, format=form)
    before = journal.read_bytes()
    assert orchestrator(line) == USAGE
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"The journal {journal} has another format: got {form}; allowed: 1" in said
    assert journal.read_bytes() == before
    assert run_lookup.find(folder.parent, "run").status() in ("lost", "failed")


@pytest.fixture
def finished(recorded: Callable[..., Path], toy_workload: Any) -> Path:
    """The storage with a run and a sweep that an earlier version has finished."""
    recorded("sweep", None)
    return recorded("run", None).parent


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ls", ["2/2", "test/error 0.1121", "test/error 0.01466"]),
        ("status run", ["finished", "validation/error 0.04179", "test/error 0.01466"]),
        ("status sweep", ["finished", "validation/error 0.0005", "test/error 0.1121"]),
        ("compare run sweep --by lr", ["0.04179", "0.0005415", "0.576"]),
        ("compare run sweep --by lr --split test", ["0.01466", "0.1121"]),
    ],
)
def test_what_an_earlier_version_has_finished_is_shown(
    line: str, shown: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert orchestrator(line) == DONE
    said = capsys.readouterr().out
    assert all(text in said for text in shown), said


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_what_an_earlier_version_has_finished_has_a_report_and_no_resume(
    kind: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = finished / "report.html"
    assert orchestrator(f"report {kind} --output {page}") == DONE
    assert {"run": "0.01466", "sweep": "0.1121"}[kind] in page.read_text()
    before = {path: path.read_bytes() for path in (finished / kind).rglob("*") if path.is_file()}
    named = f" --space {SPACES}:space" if kind == "sweep" else ""
    assert orchestrator(f"{kind} --resume {kind}{named}") == USAGE
    assert f"{kind} has already finished" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in (finished / kind).rglob("*") if path.is_file()}
