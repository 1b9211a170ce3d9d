"""``ls``, ``best``, ``compare``, ``report`` and ``accounts`` as typed commands: JSON output and exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from orchestrator.cli import app, exit_codes
from orchestrator.cli.common import show_result
from orchestrator.runs.session import Result
from orchestrator.search.journal import open_study
from orchestrator.storage import records
from orchestrator.storage.settings import embedded_uri
from orchestrator.storage.usage_log import EVENTS
from orchestrator.sweeps import steering
from tests.support.finished import run, sweep

pytestmark = pytest.mark.usefixtures("toy_workload")


@pytest.fixture
def typed(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A function that runs a command line and returns its exit code, standard output and standard error."""

    def type_line(line: str) -> tuple[int, str, str]:
        code = app.run(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return type_line


@pytest.fixture
def storage(home: Path) -> Path:
    storage = home / "storage"
    sweep(storage, "s", [(3.0,), (1.0,), (2.0,)])
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            run(storage, f"r{lr}-{seed}", lr + seed / 100, seed=seed, lr=lr)
    events = [
        {"time": 1e9, "event": "start", "unit": "trial 0", "cpus": 2, "gpus": 0},
        {"time": 1e9 + 60, "event": "beat"},
    ]
    (storage / "s" / EVENTS).write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return storage


@pytest.mark.parametrize(
    "line",
    ["ls", "best", "best s --top 2", "compare r0.1-0 r0.2-0", "compare s --by momentum", "accounts --by day",
     "status s", "status s/1"],
)  # fmt: skip
def test_json_option_prints_one_line(line: str, storage: Path, typed: Callable[..., Any]) -> None:
    code, out, err = typed(f"{line} --json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert json.loads(out)
    code, out, err = typed(line)
    assert (code, err) == (0, "")
    assert out.strip()


def test_status_and_logs_of_a_trial_are_shown(storage: Path, typed: Callable[..., Any]) -> None:
    code, out, _ = typed("status s/1 --wait --json")
    values = json.loads(out)
    assert (code, values["id"], values["kind"], values["status"]) == (0, "s/1", "trial", "complete")
    assert values["value"] == 1.0
    (storage / "s" / "log.txt").write_text(
        "10:00:00 trial 1 started  lr=0.1\n10:00:00 trial 1/3\n10:00:01 trial 11 started  lr=0.2\n"
        "10:00:02 trial 1 complete error 1  lr=0.1\n"
    )
    for option in ("", " --follow"):
        code, out, _ = typed(f"logs s/1{option}")
        assert code == 0
        assert out == "10:00:00 trial 1 started  lr=0.1\n10:00:02 trial 1 complete error 1  lr=0.1\n"
    code, _, err = typed("status s/9")
    assert code == 2
    assert err == "error: s has no such trial: got 9; allowed: 0 to 2.\n"
    assert typed("logs other/1")[0] == 2


def test_compare_writes_the_requested_format_and_file(storage: Path, typed: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "out.md"
    ids = "r0.1-0 r0.1-1 r0.2-0 r0.2-1"
    assert typed(f"compare {ids} --format markdown --output {file}") == (0, "", "")
    assert file.read_text().count("\n| ") == 4
    code, out, _ = typed(f"compare {ids} --format html")
    assert code == 0
    assert out.startswith("<!doctype html>")


def test_report_is_written_for_one_sweep_and_for_several_runs(
    storage: Path, typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed("report s") == (0, "Written: report.html\n", "")
    assert "<title>s</title>" in (tmp_path / "report.html").read_text()
    assert typed("report r0.1-0 r0.2-0 --output both.html")[0] == 0
    assert "<title>Comparison by lr</title>" in (tmp_path / "both.html").read_text()
    assert json.loads(typed("report s --json")[1]) == {"report": str(tmp_path / "report.html")}


def test_a_number_that_is_not_finite_is_null(home: Path, typed: Callable[..., Any]) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        run(home / "storage", name, lr, units=[math.nan] * 3, lr=lr)
    compared = json.loads(typed("compare a b --by lr --json")[1], parse_constant=pytest.fail)
    assert [row["difference"] for row in compared["rows"]] == [None, None]


def test_the_best_so_far_has_the_keys_of_a_winner(home: Path, typed: Callable[..., Any]) -> None:
    sweep(home / "storage", "ended", [(3.0,)])
    sweep(home / "storage", "open", [(3.0,)], settled=False)
    ended, best = (json.loads(typed(f"best {name} --json")[1]) for name in ("ended", "open"))
    assert list(best) == list(ended)
    assert (ended["test"], best["test"]) == ({"error": 9.0}, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("best r0.1-0", "r0.1-0 is a run, not a sweep"),
        ("best z", "Unknown sweep"),
        ("ls --status runing", "Did you mean 'running'?"),
        ("ls --kind job", "Invalid value for '--kind'"),
        ("compare s --by momentun", "Did you mean 'momentum'?"),
        ("compare r0.1-0 --metric eror", "Did you mean 'error'?"),
        ("compare r0.1-0 --format pdf", "Invalid value for '--format'"),
        ("compare r0.1-0 r0.2-0 --baseline 7", "Unknown baseline"),
        ("accounts --since yesterday", "The date is not valid"),
        ("report s --output /nowhere/report.html", "/nowhere/report.html cannot be written"),
    ],
)
def test_invalid_arguments_are_refused_with_one_error_line(
    line: str, words: str, storage: Path, typed: Callable[..., Any]
) -> None:
    code, out, err = typed(line)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_status_of_a_running_sweep_shows_its_progress(home: Path, typed: Callable[..., Any]) -> None:
    held = sweep(home / "storage", "s", [(3.0,), None], settled=False)
    told = json.loads(typed("status s --json")[1])
    assert told["search"]["trials"] == {"complete": 1, "fail": 1}
    assert "search:     2 of 3 trials: 1 complete, 1 fail; best: trial 0, error 3" in typed("status s")[1]
    assert held.status() == "running"


def test_wait_for_unfinished_trial_of_an_interrupted_sweep_exits_with_130(
    home: Path, typed: Callable[..., Any]
) -> None:
    held = sweep(home / "storage", "s", [(3.0,)], settled=False)
    open_study(held.path).add_trial(create_trial(state=TrialState.RUNNING))
    held.release("interrupted", 130)
    code, out, _ = typed("status s/1 --wait --json")
    assert (code, json.loads(out)["status"]) == (130, "running")
    assert typed("status s/1")[0] == 0


@pytest.mark.parametrize("version", ["3", None])
def test_promote_command_is_shown_only_for_a_registered_version(
    version: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command has the recorded name, which a resume cannot change. It is absent for an unregistered version."""
    asked = {"sweep": {}, "options": {"register": "rec"}}
    folder = records.create(tmp_path, "sweep", "toy", asked, "orchestrator sweep toy --register rec")
    extra = {"registered_version": version}
    result = Result(folder.id, None, "finished", {}, "models:/m-1", 1.0, 1.0, 1.0, folder.path, extra=extra)
    assert exit_codes.guarded(lambda: show_result(result, as_json=False)) == 0
    assert ("orchestrator promote rec --to champion" in capsys.readouterr().out) is (version is not None)


@pytest.mark.parametrize(
    ("tracking", "more"), [("here", ""), (None, ""), ("http://x:5000", " --tracking http://x:5000")]
)
def test_promote_command_names_a_tracking_store_other_than_the_default(
    tracking: str | None, more: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if tracking == "here":
        tracking = embedded_uri(home)
    asked = {"sweep": {}, "options": {"register": "rec"}}
    folder = records.create(tmp_path, "sweep", "toy", asked, "orchestrator sweep toy", tracking=tracking)
    extra = {"registered_version": "1"}
    result = Result(folder.id, None, "finished", {}, "models:/m-1", 1.0, 1.0, 1.0, folder.path, extra=extra)
    exit_codes.guarded(lambda: show_result(result, as_json=False))
    assert f"orchestrator promote rec --to champion{more}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("run_id", "comes"), [("a1", True), (None, False)])
def test_ui_command_is_shown_only_for_a_run_in_mlflow(
    run_id: str | None, comes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result("r", run_id, "finished", {}, "/model", 1.0, 1.0, 1.0, tmp_path)
    exit_codes.guarded(lambda: show_result(result, as_json=False))
    assert ("orchestrator ui" in capsys.readouterr().out) is comes


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_resume_command_names_the_storage_of_the_run(verb: str, typed: Callable[..., Any], tmp_path: Path) -> None:
    there = tmp_path / "elsewhere"
    records.create(there, "run", "toy", {}, "orchestrator run toy", "r1").release("interrupted", 130)
    out = typed(f"{verb} r1 --storage {there}")[1]
    assert f"orchestrator run --resume r1 --storage {there}" in out


@pytest.mark.parametrize(
    ("status", "code", "when"),
    [("running", None, ""), ("interrupted", 130, ", when it is resumed: orchestrator sweep --resume s1")],
)
def test_add_prints_when_the_trial_starts(
    status: str, code: int | None, when: str, home: Path, typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "add", lambda *_: {"lr": 0.1})
    folder = records.create(home / "storage", "sweep", "toy", {}, "orchestrator sweep toy", "s1")
    if code:
        folder.release("interrupted", code)
    assert typed("add s1 lr=0.1") == (0, f"s1 takes one more trial: lr=0.1{when}\n", "")
