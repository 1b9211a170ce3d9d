"""The record of ``make test-deploy``: for each test, its last run that was not skipped."""

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

HEAD = "Each test's last run by `make test-deploy`, which writes this file; below each file what it last ran on."
SERVICES = {
    "test_compose.py": (["docker", "--version"], ["docker", "compose", "version"]),
    "test_slurm.py": (["sbatch", "--version"],),
    "test_dist.py": (),
}
"""Commands that print the versions of what each file of tests runs on."""


def updated(old: str, reports: Iterable[pytest.TestReport]) -> str:
    """The record ``old``, updated with ``reports``. Skipped tests keep their line; removed tests lose it.

    ``reports`` has one report of each test, selected by :func:`shown`.
    """
    machines: dict[str, str] = {}
    lines: dict[str, str] = {}
    for section in old.split("\n\n")[1:]:
        file, machine, *results = section.strip().splitlines()
        machines[file] = machine
        lines |= {_test(result): result for result in results}
    commit = _commit()
    for report in reports:
        if not report.skipped:
            lines[report.nodeid] = (
                f"{datetime.fromtimestamp(report.stop, UTC):%Y-%m-%d %H:%M} {commit} {_result(report)}"
            )
            file = report.nodeid.partition("::")[0]
            machines[file] = _machine(file)
    text = [HEAD]
    for file in sorted(machines):
        source = (ROOT / file).read_text()
        kept = [line for test, line in lines.items() if test.startswith(f"{file}::") and _function(test) in source]
        text.append("\n".join([file, machines[file], *kept]))
    return "\n\n".join(text) + "\n"


def shown(report: pytest.TestReport) -> bool:
    """Whether the report is a test's result: its call, or a set-up or tear-down that did not pass."""
    return report.when == "call" or not report.passed


def _test(line: str) -> str:
    """The id of the test that a line records."""
    return re.findall(r"(?:PASSED|FAILED) (tests/.*?)(?: \(\d+ s\)|: |$)", line)[0]


def _function(test: str) -> str:
    """The beginning of the definition of the test's function."""
    return f"def {test.partition('::')[2].partition('[')[0]}("


def _result(report: pytest.TestReport) -> str:
    """The result as in pytest's ``-rA``, with the seconds and the output of a test or the reason of its failure."""
    line = f"{report.outcome.upper()} {report.nodeid}"
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return f"{line}: {_scrubbed(str(crash.message if crash else report.longrepr))}"
    printed = " ".join(report.capstdout.split())
    return f"{line} ({report.duration:.0f} s)" + (f": {_scrubbed(printed)}" if printed else "")


def _commit() -> str:
    """The commit of the tests, with a plus if files have uncommitted changes."""
    git = ["git", "-C", str(ROOT)]
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return (_output([*git, "rev-parse", "--short=10", "HEAD"]) or "unknown") + "+" * bool(changed)


def _machine(file: str) -> str:
    packages = [f"{name} {version(name)}" for name in ("ray", "mlflow")]
    services = filter(None, map(_output, SERVICES[file.rpartition("/")[2]]))
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB, load {os.getloadavg()[0]:.0f}"
    return ", ".join([f"{os.cpu_count()} cores, {memory}; Python {platform.python_version()}", *packages, *services])


def _output(command: list[str]) -> str:
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _scrubbed(text: str) -> str:
    """The first line, without this machine's name and folders."""
    line = text.strip().partition("\n")[0].replace(platform.node(), "HOST")
    return re.sub(r"(?<![\w:/])/(?:[\w.+-]+/)+", ".../", line)[:300]
