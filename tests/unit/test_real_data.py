"""Tests of real data are skipped one by one if a data root has only some of the datasets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.held_data import is_held
from tests.support.readme_tree import ROOT
from tests.support.tiny_dataset import lay_out, register

DATA = ROOT / "tests" / "unit" / "workloads" / "data"


def real_data_tests(folder: Path, root: Path, **more: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "data", "-p", "no:cacheprovider", str(folder)]
    variables = {**os.environ, "ORCHESTRATOR_DATA": str(root), "ORCHESTRATOR_NO_SKIP": "0", **more}
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.faults
def test_missing_dataset_skips_its_tests(tmp_path: Path) -> None:
    last = real_data_tests(DATA / "pairs", tmp_path).splitlines()[-1]
    assert "skipped" in last
    assert "failed" not in last
    assert "passed" not in last


@pytest.mark.faults
def test_missing_dataset_fails_its_tests_with_orchestrator_no_skip(tmp_path: Path) -> None:
    output = real_data_tests(DATA / "pairs", tmp_path, ORCHESTRATOR_NO_SKIP="1")
    assert "ORCHESTRATOR_DATA holds no stsb" in output
    assert "skipped" not in output.splitlines()[-1]


def test_dataset_is_held_only_if_all_its_files_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = register(monkeypatch, "http://127.0.0.1:9")
    root = lay_out(tmp_path)
    assert is_held(tiny.name, str(root))
    next(tiny.folder_in(root).iterdir()).unlink()
    assert not is_held(tiny.name, str(root))
    assert is_held(tiny.name, "s3://bucket/sets")
