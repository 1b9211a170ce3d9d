"""``deploy/slurm`` on a real Slurm of two nodes, which may be one machine: nothing that Slurm does loses work.

Set ``SLURM_CONF``, or have Slurm's commands work as they are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.commands import ROOT, SPACES, THIRD_PARTY, Store, trials
from tests.unit.deploy.manifests import DEPLOY

pytestmark = pytest.mark.deploy
SECONDS = 400.0
EPOCHS = 40
SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "--trials", "4", "--cpus-per-worker", "1"]
PACE = [f"epochs={EPOCHS}", "slow=0.5", "refit=false"]


def slurm(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def _nodes() -> None:
    if shutil.which("sbatch") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no Slurm answers to sinfo (SLURM_CONF)")
    if int(slurm("sinfo", "--noheader", "--format=%D", "--states=idle") or 0) < 2:
        pytest.skip("Slurm has no two idle nodes")


class Job:
    """A submitted job, its output and what it left on the machine."""

    def __init__(
        self, home: Path, *words: str, script: str = "orchestrator.sbatch", options: Sequence[str] = ()
    ) -> None:
        self.home, self.store = home, Store(home)
        foreign = ("RAY_", "ORCHESTRATOR_", "MLFLOW_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
            "ORCHESTRATOR_HOME": str(home),
            "PYTHONPATH": f"{THIRD_PARTY}{os.pathsep}{ROOT}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_memory_monitor_refresh_ms": "0",
        }
        said = subprocess.run(
            ["sbatch", "--parsable", "--nodes=2", "--cpus-per-task=1", "--time=20", f"--output={home}/out.txt",
             *options, DEPLOY / "slurm" / script, *words],
            cwd=home, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.id = said.stdout.strip()

    def text(self) -> str:
        return (self.home / "out.txt").read_text() if (self.home / "out.txt").exists() else ""

    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        return re.findall(r"JobState=(\w+)", slurm("scontrol", "show", "job", self.id))[0]

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.5)

    def end(self) -> str:
        self.until(lambda: self.state() not in ("PENDING", "RUNNING", "COMPLETING"))
        return self.state()

    def training(self) -> bool:
        """Whether every trial has reported."""
        return len([key for key in self.store.steps() if "/" in key]) == 4

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        """Processes of this job on a node, or on all."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except psutil.Error:
                continue
            if environment.get("SLURM_JOB_ID") == self.id and node in (None, int(environment.get("SLURM_NODEID", -1))):
                found.append(process)
        return found

    def check_nothing_is_left(self, lost: str | None = None) -> None:
        """No process and no running run; no folder either, but for that of a ``lost`` node."""
        self.until(lambda: not self.processes())
        assert {path.name for path in Path("/tmp").glob(f"ray-{self.id}-*")} <= {f"ray-{self.id}-{lost}"}
        assert self.store.query("select run_uuid from runs where status = 'RUNNING'") == []

    def check_whole(self) -> None:
        """All four trials are complete, with every epoch once."""
        assert [row["state"] for row in trials(self.home)] == ["complete"] * 4, self.text()
        steps = {key: found for key, found in self.store.steps().items() if "/" in key}
        assert list(steps.values()) == [list(range(1, EPOCHS + 1))] * 4, "a row was lost or doubled"
        self.store.check()


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(*words: str, **options: Any) -> Job:
        jobs.append(Job(tmp_path, *words, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        subprocess.run(["scancel", "--quiet", job.id], check=False)


def test_the_warning_before_the_time_limit_saves_and_requeues(submit: Callable[..., Job]) -> None:
    """The signal is sent by hand: Slurm sends it itself at --signal's seconds before the end."""
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    slurm("scancel", "--signal=USR1", "--batch", job.id)
    job.until(lambda: job.state() == "PENDING")
    job.check_nothing_is_left()
    assert "the time limit is near: saving" in job.text()
    assert 0 < sum(map(len, job.store.steps().values())) < 4 * EPOCHS, job.text()
    slurm("scontrol", "update", f"JobId={job.id}", "StartTime=now")  # Slurm waits two minutes
    assert job.end() == "COMPLETED", job.text()
    job.check_whole()
    job.check_nothing_is_left()


def test_a_node_is_lost(submit: Callable[..., Job]) -> None:
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    for process in job.processes(node=1):
        process.kill()
    slurm("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    try:
        assert job.end() == "COMPLETED", job.text()
        job.check_whole()
        job.check_nothing_is_left(lost="1")
    finally:
        subprocess.run(["scontrol", "update", "NodeName=n2", "State=RESUME"], check=False)  # it may have come back


def test_scancel_leaves_nothing_and_the_next_job_resumes(submit: Callable[..., Job]) -> None:
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    slurm("scancel", job.id)
    assert job.end() == "CANCELLED"
    job.check_nothing_is_left(lost="0")  # Slurm kills what is cleaning up after 30 s
    again = submit("toy", *SWEEP, *PACE)
    assert again.end() == "COMPLETED", again.text()
    again.check_whole()


def test_an_array_runs_each_line(submit: Callable[..., Job], tmp_path: Path) -> None:
    words = " ".join([*SWEEP, "epochs=2", "refit=false"])
    (tmp_path / "sweeps.txt").write_text(f"first {words}\nsecond {words} --seed '7'\n")
    job = submit(str(tmp_path / "sweeps.txt"), script="array.sbatch", options=("--array=1-2", "--nodes=1"))
    job.until(lambda: not slurm("squeue", "--noheader", f"--jobs={job.id}"))
    for name in ("first", "second"):
        record = json.loads((tmp_path / "storage" / name / "record.json").read_text())
        assert record["status"] == "finished", job.text()


def test_a_command_that_is_wrong_ends_the_job(submit: Callable[..., Job]) -> None:
    job = submit("toy", "sweep", "toy", "learning_rate=1")
    assert job.end() == "FAILED"
    assert "learning_rate" in job.text()
    job.check_nothing_is_left()
