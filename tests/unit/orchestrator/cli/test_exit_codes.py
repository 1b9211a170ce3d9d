"""Exit codes and messages of commands after Ctrl-C, system errors and outages."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from mlflow.exceptions import MlflowException

from orchestrator.cli import exit_codes
from orchestrator.errors import FAILED, INTERRUPTED, UNAVAILABLE, Interrupted
from orchestrator.storage import records


@pytest.mark.parametrize("pressed", [KeyboardInterrupt, ImportError, None])
@pytest.mark.parametrize(
    ("words", "driven", "line"),
    [
        (["run", "recommender"], set(), "Interrupted before the run was recorded; there is nothing to resume.\n"),
        (["sweep", "recommender"], set(), "Interrupted before the sweep was recorded; there is nothing to resume.\n"),
        (["run", "--resume", "r1"], set(), "Interrupted before the run was continued. It can still be resumed.\n"),
        (["sweep", "--resume=s1"], set(), "Interrupted before the sweep was continued. It can still be resumed.\n"),
        (["run", "recommender"], {"r1"}, ""),
        (["logs", "-f"], set(), ""),
    ],
)
def test_ctrl_c_before_a_run_is_driven_prints_whether_it_can_resume(
    words: list[str],
    driven: set[str],
    line: str,
    pressed: type[BaseException] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A library may turn KeyboardInterrupt into another error, and Typer turns it into an exit code."""
    monkeypatch.setattr(sys, "argv", ["orchestrator", *words])
    monkeypatch.setattr(records, "DRIVEN", driven)

    class CtrlC(exit_codes.Remembered):
        def __enter__(self) -> CtrlC:
            self.pressed = True
            return self

    def call() -> Any:
        if pressed is None:
            return INTERRUPTED
        raise pressed

    monkeypatch.setattr(exit_codes, "Remembered", CtrlC)
    assert exit_codes.guarded(call) == INTERRUPTED
    assert capsys.readouterr().err == line


def test_interrupted_error_prints_the_command_that_continues(capsys: pytest.CaptureFixture[str]) -> None:
    def call() -> Any:
        raise Interrupted("orchestrator run --resume r1 --storage /mnt/a")

    assert exit_codes.guarded(call) == INTERRUPTED
    assert capsys.readouterr().err.endswith("Continue with: orchestrator run --resume r1 --storage /mnt/a\n")


@pytest.mark.parametrize("named", [None, "/data/list.csv"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE])
def test_os_error_is_reported_as_a_failure_and_not_as_a_bug(
    number: int, named: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def call() -> Any:
        raise OSError(number, os.strerror(number), named)

    assert exit_codes.guarded(call) == FAILED
    assert capsys.readouterr().err == f"failed: {os.strerror(number)}{f': {named}' if named else ''}\n"


@pytest.mark.parametrize(
    "error",
    [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), RuntimeError("can't start new thread")],
)
def test_a_limit_on_processes_is_no_bug(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def call() -> Any:
        raise error

    assert exit_codes.guarded(call) == FAILED
    said = capsys.readouterr().err
    assert said.startswith("failed: No process or thread can be started: got ")
    assert said.endswith(". End other processes, or raise their limit (ulimit -u, or that of the container).\n")


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="http://s3"),
        MlflowException("API request to http://mlflow/api failed with exception Max retries exceeded"),
    ],
)
def test_outage_during_a_command_is_reported_as_unavailable(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def call() -> Any:
        raise error

    assert exit_codes.guarded(call) == UNAVAILABLE
    assert capsys.readouterr().err.startswith("error: MLflow, or the store of its artifacts, did not answer: got ")


def test_created_folder_is_registered_as_driven(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DRIVEN", set())
    folder = records.create(tmp_path, "run", "toy", {}, "orchestrator run toy")
    assert {folder.id} == records.DRIVEN
