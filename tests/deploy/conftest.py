"""Write the record of ``make test-deploy`` to the file that ``ORCHESTRATOR_DEPLOY_RECORD`` names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import record


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    if name := os.environ.get("ORCHESTRATOR_DEPLOY_RECORD"):
        file = Path(name)
        reports = [
            each for kind in ("passed", "failed", "error", "skipped") for each in terminalreporter.getreports(kind)
        ]
        file.write_text(record.updated(file.read_text() if file.exists() else "", filter(record.shown, reports)))
        terminalreporter.write_line(f"Recorded in {file}")
