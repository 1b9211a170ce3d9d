"""Targets of the Makefile. In the tests of `make test`, a stub replaces Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make_test(folder: Path, unit: str, integration: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """Run `make test` with a stub of Python that runs shell code for each part. Returns the parts that ran."""
    stub, ready, parts = folder / "python", folder / "ready", folder / "parts"
    stub.write_text(
        f'#!/bin/sh\necho "$3" >> {parts}\ncase "$3" in tests/unit) {unit};; tests/integration) {integration};; esac\n'
    )
    stub.chmod(0o755)
    ready.touch()
    words = ["make", "-C", str(ROOT), "test", "SHELL=/bin/bash", f"BIN={folder}", f"READY={ready}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100, start_new_session=True)
    return parts.read_text().split(), done


@pytest.mark.parametrize(("unit", "integration"), [(0, 0), (1, 0), (0, 1), (1, 3), (4, 1)], ids=str)
def test_make_test_runs_both_parts_and_fails_if_either_fails(unit: int, integration: int, tmp_path: Path) -> None:
    parts, done = make_test(tmp_path, f"exit {unit}", f"exit {integration}")
    assert sorted(parts) == ["tests/integration", "tests/unit"]
    assert (done.returncode == 0) == (unit == integration == 0)
    assert all(f"Error {code}" in done.stderr for code in (unit, integration) if code)


def test_make_test_runs_both_parts_at_the_same_time(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # a reader and a writer wait for each other
    _, done = make_test(tmp_path, f"cat {pipe}", f"echo met > {pipe}")
    assert done.returncode == 0
    assert "met" in done.stdout


def test_ctrl_c_ends_both_parts_of_make_test(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    _, done = make_test(tmp_path, f"cat {pipe}; trap 'exit 2' INT; kill -INT 0", f"echo met > {pipe}; exec sleep 1000")
    assert done.returncode != 0


def test_make_dist_does_not_use_the_training_environment(tmp_path: Path) -> None:
    """The client is built with it on a laptop, which has no training environment."""
    words = ["make", "-C", str(ROOT), "--dry-run", "dist", f"TOOLS={tmp_path}", f"VENV={tmp_path}/none"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100).stdout
    assert f"{tmp_path}/bin/python -m build" in printed
    assert f"{tmp_path}/none" not in printed
    assert "[dev]" not in printed
