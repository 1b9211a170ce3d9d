"""The record that ``make test-deploy`` writes to ``docs/``."""

from __future__ import annotations

import importlib
import platform
import re
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.deploy import record
from tests.unit.deploy.manifests import DEPLOY, ROOT

Outcome = Literal["passed", "failed", "skipped"]
DOCTOR = "tests/deploy/test_compose.py::test_doctor_as_a_job"
SIZE = "tests/deploy/test_dist.py::test_it_is_small_and_knows_its_version"


def report(test: str, outcome: Outcome, longrepr: Any = None, printed: str = "") -> pytest.TestReport:
    sections = [("Captured stdout call", printed)]
    return pytest.TestReport(test, ("", 0, ""), {}, outcome, longrepr, "call", sections, 12.3, 0, 1764041400.0)


def test_each_test_keeps_the_line_of_its_last_run() -> None:
    skipped = ("/a/b.py", 1, "Skipped: no Docker")
    gone = report("tests/deploy/test_dist.py::test_that_is_gone", "passed")
    size = report(SIZE, "passed", printed="the client weighs\n825 MB\n")
    first = record.updated("", [report(DOCTOR, "skipped", skipped), size, gone])
    assert first.startswith(f"{record.HEAD}\n\ntests/deploy/test_dist.py\n")
    assert re.search(r"\n\d+ cores, \d+ GiB, load \d+; Python 3\.\d+\.\d+, ray [\d.]+, mlflow [\d.]+\n", first)
    assert re.search(rf"\n2025-11-25 03:30 \w+\+? PASSED {SIZE} \(12 s\): the client weighs 825 MB\n", first)
    assert "test_compose" not in first
    assert "gone" not in first

    crash = SimpleNamespace(reprcrash=SimpleNamespace(message=f"no {ROOT}/x.txt on {platform.node()}\nmore"))
    second = record.updated(first, [report(DOCTOR, "failed", crash), report(SIZE, "skipped", skipped)])
    assert re.search(rf"\n2025-11-25 03:30 \w+\+? FAILED {DOCTOR}: no \.\.\./x\.txt on HOST\n", second)
    assert second.endswith(first.partition("\n\n")[2])
    assert record.updated(second, [report(DOCTOR, "passed")]).count(DOCTOR) == 1


def test_deploy_pages_link_the_record_and_it_contains_no_local_path() -> None:
    text = (ROOT / "docs" / "deploy-last-run.txt").read_text()
    assert record.updated(text, []) == text
    assert not re.search(r"(?<![\w:/.])/(?:tmp|root|home|work|usr)/", text)
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d [0-9a-f]{10}\+? PASSED tests/", text, re.MULTILINE)
    for page in ("README.md", "TESTED.md"):
        assert "(../docs/deploy-last-run.txt)" in (DEPLOY / page).read_text(), page
    assert "(../../docs/deploy-last-run.txt)" in (DEPLOY / "slurm" / "README.md").read_text()


@pytest.mark.parametrize("name", ["compose", "dist", "slurm"])
def test_deploy_test_modules_have_a_timeout_of_an_hour(name: str) -> None:
    """The timeout of the other tests would end the first build of the images."""
    module = importlib.import_module(f"tests.deploy.test_{name}")
    marks = {mark.name: mark.args for mark in module.pytestmark}
    assert marks["timeout"] == (3600,)
    assert getattr(module, "SECONDS", 0) < 3600
