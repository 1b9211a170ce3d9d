"""A job that is submitted again after its driver was lost."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.errors import UNAVAILABLE
from orchestrator.jobs import durable


def test_unavailable_attempt_exits_with_its_code_and_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.CompletedProcess([], UNAVAILABLE, "", "The storage is out of reach\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SystemExit) as ended:
        durable.main("mine", "run", "toy")
    assert (ended.value.code, capsys.readouterr().err) == (UNAVAILABLE, done.stderr)
