"""``deploy/slurm`` on a real Slurm of two nodes, which may be one machine: no action of Slurm loses work.

Set ``SLURM_CONF``, unless Slurm's commands work without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import tracked
from tests.support.commands import ROOT, SPACES, THIRD_PARTY, Store, trials
from tests.support.waiting import until
from tests.unit.deploy.manifests import DEPLOY

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
SECONDS = 900.0
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
    """A submitted job, its output, and what it leaves on the machine."""

    def __init__(
        self,
        home: Path,
        *words: str,
        script: str = "orchestrator.sbatch",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self.store = home, Store(home)
        foreign = ("RAY_", "ORCHESTRATOR_", "MLFLOW_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        own = {
            "ORCHESTRATOR_HOME": str(home),
            "PYTHONPATH": f"{THIRD_PARTY}{os.pathsep}{ROOT}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_worker_niceness": "0",
        }
        said = subprocess.run(
            ["sbatch", "--parsable", "--nodes=2", "--cpus-per-task=1", "--time=20", f"--output={home}/out.txt",
             *options, DEPLOY / "slurm" / script, *words],
            cwd=home, env={**inherited, **own, **(environment or {})}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.id = said.stdout.strip()

    def text(self) -> str:
        return (self.home / "out.txt").read_text() if (self.home / "out.txt").exists() else ""

    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        return re.findall(r"JobState=(\w+)", slurm("scontrol", "show", "job", self.id))[0]

    def until(self, condition: Callable[[], Any]) -> None:
        until(condition, SECONDS, pause=0.5, why=self.text)

    def has_ended(self) -> bool:
        return self.state() not in ("PENDING", "RUNNING", "COMPLETING")

    def end(self) -> str:
        self.until(self.has_ended)
        return self.state()

    def start_again(self, *changes: str) -> None:
        """Start the requeued job soon, with ``changes`` of its options; Slurm itself would wait two minutes.

        A job fails if it starts in the second in which Slurm revokes its credential.
        """
        self.until(lambda: self.state() == "PENDING")
        slurm("scontrol", "update", f"JobId={self.id}", "StartTime=now+5", *changes)

    def training(self) -> bool:
        """Whether every trial has reported. Fails once the job has ended."""
        assert not self.has_ended(), self.text()
        return len([key for key in self.store.steps() if "/" in key]) == 4

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        """The job's processes on ``node``, or on all nodes."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except psutil.Error:
                continue
            if environment.get("SLURM_JOB_ID") == self.id and node in (None, int(environment.get("SLURM_NODEID", -1))):
                found.append(process)
        return found

    def dashboard(self, token: str | None = None) -> int:
        """The HTTP status of Ray's dashboard, requested with the job's token unless another is given."""
        environment = next(each.environ() for each in self.processes() if "RAY_API_SERVER_ADDRESS" in each.environ())
        request = urllib.request.Request(f"{environment['RAY_API_SERVER_ADDRESS']}/api/version")
        if token != "":
            request.add_header("Authorization", f"Bearer {token or environment['RAY_AUTH_TOKEN']}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def check_nothing_is_left(self, lost: int | None = None) -> None:
        """Check that no process, no running run and no folder is left, except the folder of a ``lost`` node."""
        self.until(lambda: not self.processes())
        left = {path.name for path in Path("/tmp").glob(f"ray-{self.id}-*")}
        assert {name for name in left if not name.startswith(f"ray-{self.id}-{lost}-")} == set()
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
    """The test sends the signal during training. The dashboard accepts only the job's token."""
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    assert [job.dashboard(), job.dashboard(token="wrong"), job.dashboard(token="")] == [200, 403, 401]
    slurm("scancel", "--signal=USR1", "--batch", job.id)
    job.until(lambda: job.state() == "PENDING")
    job.check_nothing_is_left()
    assert "the time limit is near: saving" in job.text()
    assert 0 < sum(map(len, job.store.steps().values())) < 4 * EPOCHS, job.text()
    job.start_again()
    assert job.end() == "COMPLETED", job.text()
    job.check_whole()
    job.check_nothing_is_left()


def test_a_real_time_limit(submit: Callable[..., Job]) -> None:
    """Slurm sends the warning. The trials take longer than the limit on a machine of any speed."""
    slow = [word if not word.startswith("slow") else "slow=2" for word in PACE]
    job = submit("toy", *SWEEP, *slow, options=("--time=2", "--signal=B:USR1@60"))
    job.until(lambda: job.state() == "PENDING" and "the time limit is near: saving" in job.text())
    job.check_nothing_is_left()
    job.start_again("TimeLimit=30")
    assert job.end() == "COMPLETED", job.text()
    assert int(re.findall(r"Restarts=(\d+)", slurm("scontrol", "show", "job", job.id))[0]) == 1
    job.check_whole()
    job.check_nothing_is_left()


def test_preemption(submit: Callable[..., Job]) -> None:
    """``scontrol requeue`` does what preemption without a grace time does: SIGTERM, and SIGKILL after KillWait."""
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    slurm("scontrol", "requeue", job.id)
    job.start_again()
    assert job.end() == "COMPLETED", job.text()
    job.check_whole()
    job.check_nothing_is_left()


@pytest.fixture
def preempting() -> str:
    """A partition whose jobs preempt those of the default one, after a grace time."""
    lines = slurm("scontrol", "--oneliner", "show", "partition").splitlines()
    partitions = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    (default,) = (one for one in partitions if one["Default"] == "YES")
    above = [one for one in partitions if int(one["PriorityTier"]) > int(default["PriorityTier"])]
    if default["PreemptMode"] != "REQUEUE" or default["GraceTime"] == "0" or not above:
        pytest.skip("Slurm has no partition that preempts the default one (deploy/slurm/README.md)")
    return above[0]["PartitionName"]


def test_preemption_with_a_grace_time(submit: Callable[..., Job], preempting: str) -> None:
    """Slurm signals Ray, or the job if ``send_user_signal`` is set, and leaves the job running for the grace time."""
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    slurm("sbatch", f"--partition={preempting}", "--nodes=2", "--time=1", "--output=/dev/null", "--wrap", "sleep 1")
    job.start_again()
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
        job.check_nothing_is_left(lost=1)
    finally:
        subprocess.run(["scontrol", "update", "NodeName=n2", "State=RESUME"], check=False)  # the node may be up already


def test_the_first_node_is_lost(submit: Callable[..., Job]) -> None:
    """The driver and Ray's head are lost too. The second node requeues the job, which resumes when a node is up."""
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    others = psutil.process_iter(["cmdline"])  # a process that has ended has no command line
    (daemon,) = (one for one in others if {"slurmd", "n1"} <= {Path(word).name for word in one.info["cmdline"] or ()})
    command = daemon.cmdline()
    lost = job.processes(node=0)
    steps = {step for each in lost for step in each.parents() if step.name().startswith("slurmstepd")}
    try:
        for process in (daemon, *steps, *lost):  # Slurm's own first, so that no end is reported
            process.kill()
        slurm("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
        job.until(lambda: job.state() == "PENDING")
    finally:
        subprocess.run(command, check=True)
        subprocess.run(["scontrol", "update", "NodeName=n1", "State=RESUME"], check=False)  # the node may be up already
    job.start_again()
    assert job.end() == "COMPLETED", job.text()
    job.check_whole()
    job.check_nothing_is_left()


def test_scancel_leaves_nothing_and_the_next_job_resumes(submit: Callable[..., Job]) -> None:
    job = submit("toy", *SWEEP, *PACE)
    job.until(job.training)
    slurm("scancel", job.id)
    assert job.end() == "CANCELLED"
    job.check_nothing_is_left(lost="0")  # after 30 s Slurm kills the clean-up
    again = submit("toy", *SWEEP, *PACE)
    assert again.end() == "COMPLETED", again.text()
    again.check_whole()


@pytest.fixture
def server(tmp_path: Path, initialised_store: Path) -> Iterator[str]:
    """The address of an MLflow server, which several jobs at once need."""
    folder = tmp_path / "server"
    folder.mkdir()
    started = tracked.Server(folder, initialised_store)
    yield started.wait()
    started.kill()


def test_an_array_runs_each_line(submit: Callable[..., Job], tmp_path: Path, server: str) -> None:
    words = " ".join([*SWEEP, "epochs=2", "refit=false"])
    (tmp_path / "sweeps.txt").write_text(f"first {words}\nsecond {words} --seed '7'\n")
    job = submit(
        str(tmp_path / "sweeps.txt"), script="array.sbatch", options=("--array=1-2", "--nodes=1"),
        environment={"MLFLOW_TRACKING_URI": server},
    )  # fmt: skip
    job.until(lambda: not slurm("squeue", "--noheader", f"--jobs={job.id}"))
    for name in ("first", "second"):
        record = tmp_path / "storage" / name / "record.json"
        assert record.exists(), job.text()
        assert json.loads(record.read_text())["status"] == "finished", job.text()
    store = Store(tmp_path / "server")
    store.check()
    assert len(store.query("select run_uuid from runs where status = 'FINISHED'")) == 10


def test_a_run_and_the_same_line_again(submit: Callable[..., Job], tmp_path: Path) -> None:
    words = ["one", "run", "toy", "epochs=3", "refit=false", "--workers", "2", "--cpus-per-worker", "1"]
    job = submit(*words)
    assert job.end() == "COMPLETED", job.text()
    assert json.loads((tmp_path / "storage" / "one" / "record.json").read_text())["status"] == "finished"
    job.store.check()
    again = submit(*words)
    assert again.end() == "COMPLETED", again.text()
    assert "one is finished already" in again.text()
    assert len(again.store.query("select run_uuid from runs")) == 1


def test_a_command_that_is_wrong_ends_the_job(submit: Callable[..., Job]) -> None:
    job = submit("toy", "sweep", "toy", "learning_rate=1")
    assert job.end() == "FAILED"
    assert "learning_rate" in job.text()
    job.check_nothing_is_left()
