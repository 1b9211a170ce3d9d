"""The GPU's first day, tried on the virtual device, with nothing installed that a GPU machine may lack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_day

ABSENT = ("ray", "mlflow", "optuna", "numba")
BLOCKED = f"""
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from benchmarks import gpu_day
for part in sys.argv[2:]:
    gpu_day.main(["--part", part, "--out", sys.argv[1], "--dry"])
"""


@pytest.mark.faults  # a minute on a busy machine
def test_every_part_leaves_its_rows(tmp_path: Path) -> None:
    parts = ["2", "3", "4", "5", "6", "9"]
    command = [sys.executable, "-c", BLOCKED, str(tmp_path), *parts]
    done = subprocess.run(command, cwd=gpu_day.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in parts:
        found = json.loads((tmp_path / f"gpu-day-{part}.json").read_text())
        assert found["device"] == "virtual"
        assert found["rows"]
        assert not [row for row in found["rows"] if "error" in row or "left_out" in row]
    steps = {row["name"] for row in json.loads((tmp_path / "gpu-day-2.json").read_text())["rows"]}
    assert steps == {"mf", "lightgcn", "lightgcn bf16", "simclr", "bi-encoder", "text ranker", "vera", "lifelong"}


def test_an_error_is_a_row(tmp_path: Path) -> None:
    day = gpu_day.Day("4", tmp_path, dry=True)
    day.measure("too large", lambda: exec("raise MemoryError('CUDA out of memory')"))  # type: ignore[arg-type]
    day.measure("next", lambda: {"step_ms": 1.0})
    rows = json.loads((tmp_path / "gpu-day-4.json").read_text())["rows"]
    assert rows == [{"name": "too large", "error": "MemoryError: CUDA out of memory"}, {"name": "next", "step_ms": 1.0}]


def test_what_is_missing_names_itself(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Missing: nowhere"):
        gpu_day.missing("torch", "nowhere")
    with pytest.raises(SystemExit, match="There is no CUDA device"):
        gpu_day.main(["--part", "3", "--out", str(tmp_path)])
