"""The record that ``make test-deploy`` leaves in ``docs/``."""

from __future__ import annotations

import importlib
import platform
import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.deploy import record
from tests.unit.deploy.manifests import ROOT

NOW = datetime(2026, 11, 25, 3, 30, tzinfo=UTC)
Outcome = Literal["passed", "failed", "skipped"]


def report(test: str, outcome: Outcome, longrepr: Any = None, printed: str = "") -> pytest.TestReport:
    return pytest.TestReport(
        f"tests/deploy/{test}", ("", 0, ""), {}, outcome, longrepr, "call", [("Captured stdout call", printed)], 12.3
    )


def test_each_part_keeps_the_section_of_its_last_run() -> None:
    skipped = report("test_compose.py::test_doctor", "skipped", ("/a/b.py", 1, "Skipped: no Docker"))
    size = report("test_dist.py::test_size", "passed", printed="the client weighs\n825 MB\n")
    first = record.updated("", [skipped, size], NOW)
    assert "SKIPPED tests/deploy/test_compose.py::test_doctor: Skipped: no Docker" in first
    assert "2026-11-25 03:30 UTC, commit " in first
    assert re.search(r"Python 3\.\d+\.\d+, ray [\d.]+, mlflow [\d.]+", first)
    assert "PASSED tests/deploy/test_dist.py::test_size (12 s): the client weighs 825 MB\n" in first

    crash = SimpleNamespace(reprcrash=SimpleNamespace(message=f"no {ROOT}/x.txt on {platform.node()}\nmore"))
    failed = report("test_compose.py::test_doctor", "failed", crash)
    second = record.updated(first, [failed, report("test_dist.py::test_size", "skipped", ("", 1, "no"))], NOW)
    assert "FAILED tests/deploy/test_compose.py::test_doctor: no .../x.txt on HOST\n" in second
    assert second.count("test_compose.py::") == 1
    assert second.partition("tests/deploy/test_dist.py\n")[2] == first.partition("tests/deploy/test_dist.py\n")[2]
    assert str(ROOT) not in second
    assert platform.node() not in second


@pytest.mark.parametrize("name", ["compose", "dist", "slurm"])
def test_a_part_may_take_an_hour(name: str) -> None:
    """The other tests' limit ends a first build of the images."""
    module = importlib.import_module(f"tests.deploy.test_{name}")
    marks = {mark.name: mark.args for mark in module.pytestmark}
    assert marks["timeout"] == (3600,)
    assert getattr(module, "SECONDS", 0) < 3600
