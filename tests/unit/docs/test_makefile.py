"""`make test` runs both parts of the tests, with a stub in the place of Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make_test(folder: Path, unit: str, integration: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """Run `make test` with a Python that runs the given shell code for each part. Returns the parts it was run for."""
    stub, ready, parts = folder / "python", folder / "ready", folder / "parts"
    stub.write_text(
        f'#!/bin/sh\necho "$3" >> {parts}\ncase "$3" in tests/unit) {unit};; tests/integration) {integration};; esac\n'
    )
    stub.chmod(0o755)
    ready.touch()
    words = ["make", "-C", str(ROOT), "test", "SHELL=/bin/bash", f"BIN={folder}", f"READY={ready}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100, start_new_session=True)
    return parts.read_text().split(), done


@pytest.mark.parametrize(
    ("unit", "integration", "worse"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 3, 3), (4, 1, 4)], ids=str
)
def test_both_parts_run_and_the_worse_exit_code_counts(unit: int, integration: int, worse: int, tmp_path: Path) -> None:
    parts, done = make_test(tmp_path, f"exit {unit}", f"exit {integration}")
    assert parts == ["tests/unit", "tests/integration"]
    assert (done.returncode == 0) == (worse == 0)
    assert worse == 0 or f"Error {worse}" in done.stderr


def test_ctrl_c_in_the_first_part_ends_both(tmp_path: Path) -> None:
    parts, done = make_test(tmp_path, "trap 'exit 2' INT; kill -INT 0; exit 2", "exit 0")
    assert parts == ["tests/unit"]
    assert done.returncode != 0
