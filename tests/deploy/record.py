"""The record of the last run of ``make test-deploy``: a section for each file of tests that was run, not skipped."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version

import psutil
import pytest

from tests.unit.deploy.manifests import ROOT

HEAD = """\
Last run of `make test-deploy`, which writes this file. A part that is skipped keeps the section of its last run.
"""
SERVICES = {
    "test_compose.py": (["docker", "--version"], ["docker", "compose", "version"]),
    "test_slurm.py": (["sbatch", "--version"],),
    "test_dist.py": (),
}
"""Commands that print the versions of what each file of tests runs on."""


def updated(old: str, reports: Iterable[pytest.TestReport], now: datetime | None = None) -> str:
    """The record ``old`` with the sections of the files in ``reports`` replaced, except for files that were skipped.

    ``reports``: one of each test, as :func:`shown` picks them.
    """
    sections = {section.partition("\n")[0]: section for section in old.split("\n\n")[1:]}
    by_file: dict[str, list[pytest.TestReport]] = {}
    for report in reports:
        by_file.setdefault(report.nodeid.partition("::")[0], []).append(report)
    for file, own in by_file.items():
        if file not in sections or not all(report.skipped for report in own):
            sections[file] = "\n".join([file, *_circumstances(file, now or datetime.now(UTC)), *map(_line, own)])
    return "\n\n".join([HEAD.strip(), *(sections[file].strip() for file in sorted(sections))]) + "\n"


def shown(report: pytest.TestReport) -> bool:
    """Whether the report is a test's result: its call, or a set-up or tear-down that did not pass."""
    return report.when == "call" or not report.passed


def _line(report: pytest.TestReport) -> str:
    """As in pytest's ``-rA``, with seconds or the reason, and what the test printed."""
    line = f"{report.outcome.upper()} {report.nodeid}"
    if report.skipped and isinstance(report.longrepr, tuple):
        return f"{line}: {_scrubbed(report.longrepr[2])}"
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return f"{line}: {_scrubbed(str(crash.message if crash else report.longrepr))}"
    printed = " ".join(report.capstdout.split())
    return f"{line} ({report.duration:.0f} s)" + (f": {_scrubbed(printed)}" if printed else "")


def _circumstances(file: str, now: datetime) -> list[str]:
    git = ["git", "-C", str(ROOT)]
    commit = _output([*git, "rev-parse", "--short=10", "HEAD"])
    changed = ", with changes" if _output([*git, "status", "--porcelain", "--untracked-files=no"]) else ""
    packages = [f"{name} {version(name)}" for name in ("ray", "mlflow")]
    services = filter(None, map(_output, SERVICES.get(file.rpartition("/")[2], ())))
    return [
        f"{now:%Y-%m-%d %H:%M} UTC, commit {commit or 'unknown'}{changed}",
        f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, load {os.getloadavg()[0]:.0f}",
        ", ".join([f"Python {platform.python_version()}", *packages, *services]),
    ]


def _output(command: list[str]) -> str:
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _scrubbed(text: str) -> str:
    """The first line, without this machine's name and folders."""
    line = text.strip().partition("\n")[0].replace(platform.node(), "HOST")
    return re.sub(r"(?<![\w:/])/(?:[\w.+-]+/)+", ".../", line)[:300]
