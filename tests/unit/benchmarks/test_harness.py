"""The benchmark harness: metadata of results files, and CPU time of other programs during a measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    import harness

    monkeypatch.setattr(harness, "HERE", tmp_path)
    monkeypatch.setattr(harness, "commit", lambda: "0123456789ab-dirty")
    monkeypatch.setattr(harness, "QUIET_CORES", 1e9)
    monkeypatch.setattr(harness, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(harness, "adopt_orphans", lambda: None)  # other tests share this process
    return harness


def test_a_results_file_has_commit_date_cores_load_and_samples(harness: Any, tmp_path: Path) -> None:
    bench = harness.Benchmark("none", rounds=2)
    bench.run({"ours": lambda: 2.0, "theirs": lambda: 4.0})
    bench.compare("a step", "s", "ours", "theirs", at_most=0.6)
    bench.finish()
    stored = json.loads((tmp_path / "results" / "none.json").read_text())
    assert stored["commit"] == "0123456789ab-dirty"
    assert datetime.fromisoformat(stored["when"]).tzinfo
    assert stored["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert [len(stored[name]) for name in ("load", "load_after")] == [3, 3]
    assert (stored["samples"]["ours"], stored["rows"][0]["ratio"]) == ([2.0, 2.0], 0.5)


def test_printed_tables_begin_with_command_date_and_commit(harness: Any, capsys: pytest.CaptureFixture[str]) -> None:
    harness.printed("/somewhere/benchmarks/vera_quality.py")
    head, empty = capsys.readouterr().out.splitlines()
    assert head.startswith("`python benchmarks/vera_quality.py` printed this at 20")
    assert head.endswith(", commit 0123456789ab-dirty.")
    assert not empty


def test_benchmark_measures_its_checkout_and_not_the_installed_package(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results name the commit of the checkout, so its code must be measured."""
    monkeypatch.setattr(harness, "HERE", tmp_path / "benchmarks")
    further = tmp_path / "further"
    for folder in (further, tmp_path / "workloads"):
        folder.mkdir()
    (tmp_path / "workloads" / "__init__.py").touch()
    script = further / "script.py"
    script.write_text("import workloads, sys; print(workloads.__file__); print(sys.path)")
    for env in ({}, {"PYTHONPATH": str(further)}):
        file, paths = harness.spawn([sys.executable, str(script)], env=env)[0].splitlines()
        assert file == str(tmp_path / "workloads" / "__init__.py")
        assert not env or str(further) in paths


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_cpu_time_of_orphaned_processes_counts_for_their_contestant(benchmarks: Path) -> None:
    """Ray's daemons are orphaned processes; their time must not count as that of other programs."""
    program = """
import subprocess, sys, time, harness
harness.Benchmark("none", rounds=1)
burn = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.run(["sh", "-c", f"'{sys.executable}' -c '{burn}' &"], check=True)
deadline = time.monotonic() + 60
while (seconds := harness.own_seconds() - time.process_time()) < 0.45 and time.monotonic() < deadline:
    time.sleep(0.05)
print(seconds)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(benchmarks)}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert float(done.stdout) > 0.4


def test_time_of_other_programs_is_the_smaller_of_two_counts(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's raylet does not wait for its workers, so a count by cores would attribute their time to other programs."""
    counts = iter([(1.0, 1.0), (1e6, 1.0)])
    monkeypatch.setattr(harness, "foreign_seconds", lambda: next(counts))
    bench = harness.Benchmark("none", rounds=1)
    bench.run({"ours": lambda: 2.0})
    assert bench.busy["ours"] == [0.0]


def test_all_figures_of_a_disturbed_run_are_measured_again(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disturbed run is left out of every median, such as a trial's seconds and those of its whole process."""
    monkeypatch.setattr(harness, "QUIET_CORES", 0.3)
    foreign = iter([0.0, 1e9, 1e9, 1e9])
    monkeypatch.setattr(harness, "foreign_seconds", lambda: (next(foreign),) * 2)
    runs = iter([{"ours": 9.0, "ours, whole process": 90.0}, {"ours": 1.0, "ours, whole process": 10.0}])
    bench = harness.Benchmark("none", rounds=1, patience=60)
    bench.run({"ours": lambda: next(runs)})
    assert bench.samples == {"ours": [1.0], "ours, whole process": [10.0]}
    assert bench.busy == {"ours": [0.0], "ours, whole process": [0.0]}
