"""Jobs on a real Ray head with token authentication, its dashboard and its job API, driven by the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.jobs.job_state import EXIT_RECORD
from orchestrator.provenance.record import CARRIED
from orchestrator.provenance.source import unpack
from tests.support.commands import ROOT, THIRD_PARTY, Store
from tests.support.ports import free_port
from tests.support.ray_head import ORCHESTRATOR, Head, running
from tests.support.waiting import HANG_SECONDS

SHORT = ["run", "recommender", "epochs=2", "--local", "--tracking", "none"]
LONG = ["run", "recommender", "epochs=1000000", "--local", "--tracking", "none"]
IN_PROCESS = ["run", "toy", "epochs=1000000", "slow=0.1", "--local"]  # needs little CPU time
ON_RAY = [*IN_PROCESS[:-1], "--cpus-per-worker", "1"]
SLOW = ["run", "toy", "epochs=2", "slow=3600", "--local"]


@pytest.fixture(scope="module")
def head(initialised_store: Path) -> Iterator[Head]:
    with running(initialised_store) as head:
        yield head


@pytest.fixture(scope="module")
def stand_in(head: Head) -> Path:
    """A working directory with its own ``orchestrator`` package, whose last argument determines how it ends."""
    folder = head.root / "code"
    for name in ("orchestrator/__init__.py", "kept/data/code.py", "data/big.bin", ".env", "server.pem", ".git/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("hunter2")
    (folder / "orchestrator/__init__.py").write_text("")
    (folder / "orchestrator/__main__.py").write_text(
        "import json, os, pathlib, signal, sys\n"
        "files = [str(path) for path in pathlib.Path().rglob('*') if path.suffix != '.pyc' and path.is_file()]\n"
        "print('told:', json.dumps({'files': files, 'words': sys.argv[1:], 'environment': dict(os.environ)}))\n"
        "sys.exit(7) if sys.argv[-1] == 'fail' else os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    return folder


def _line(process: subprocess.Popen[str], start: str) -> str:
    """Read up to the line that starts with ``start``, and return it."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"{start!r} never came")


def test_submit_shows_the_log_and_ends_with_one_json_line(head: Head) -> None:
    done = head.call("submit", "--json", "--", *SHORT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert re.fullmatch(r"run-recommender-\d{8}-\d{6}-[0-9a-f]{4}", told["id"])
    assert told == {"id": told["id"], "status": "finished", "exit_code": 0}
    assert "test: ndcg_at_20" in done.stderr
    assert EXIT_RECORD not in done.stderr

    listed: list[dict[str, Any]] = json.loads(head.call("jobs", "--json").stdout)
    assert [job["id"] for job in listed] == [told["id"]]
    assert listed[0]["command"] == " ".join(["orchestrator", *SHORT])
    assert told["id"] in head.call("jobs").stdout


def test_argument_error_of_a_job_returns_exit_code_2(head: Head) -> None:
    done = head.call("submit", "--", "run", "recommender", "epochs=many", "--local")
    assert done.returncode == 2, done.stdout
    assert "error: " in done.stdout


@pytest.mark.faults  # takes long
def test_exit_code_of_a_plain_ray_job_is_that_of_the_command(head: Head) -> None:
    code = head.root / "checkout"
    for package in ("orchestrator", "workloads", "search_spaces"):
        shutil.copytree(Path(orchestrator.__file__).parents[1] / package, code / package)
    ray = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--no-wait", "--submission-id", "plain"]
    entrypoint = ["python", "-m", "orchestrator", "sweep", "recommender", "--trials", "none"]
    subprocess.run(
        [*ray, "--working-dir", ".", "--", *entrypoint], cwd=code, env=head.environment, check=True, capture_output=True
    )
    done = head.call("status", "--wait", "--json", "plain")
    assert done.returncode == 2, done.stdout
    assert json.loads(done.stdout)["status"] == "failed"
    log = head.call("logs", "plain").stdout
    assert "error: " in log
    assert EXIT_RECORD not in log


def test_submit_sends_code_and_settings_without_secrets(head: Head, stand_in: Path) -> None:
    done = head.call(
        "submit", "--working-dir", str(stand_in), "--", "run", "a b=$HOME;c", "fail",
        MLFLOW_TRACKING_URI="http://tracking.example:5000", MLFLOW_TRACKING_PASSWORD="hunter2",
    )  # fmt: skip
    assert done.returncode == 7, done.stdout + done.stderr
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("told:"))[5:])
    assert sorted(told["files"]) == ["kept/data/code.py", "orchestrator/__init__.py", "orchestrator/__main__.py"]
    assert told["words"] == ["run", "a b=$HOME;c", "fail"]
    assert told["environment"]["MLFLOW_TRACKING_URI"] == "http://tracking.example:5000"
    assert told["environment"]["ORCHESTRATOR_HOME"] == head.environment["ORCHESTRATOR_HOME"]
    assert "hunter2" not in done.stdout


@pytest.mark.faults
def test_submit_sends_the_commit_and_diff_of_the_working_directory(head: Head, stand_in: Path) -> None:
    """The diff is cut to the size of one variable. Ray sends the working directory without its repository."""
    project = head.root / "project"
    shutil.copytree(stand_in / "orchestrator", project / "orchestrator")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    for number in range(60):
        (project / f"new{number}.py").write_text(f"{os.urandom(1500).hex()}\n")
    done = head.call("submit", "--working-dir", str(project), "--", "run", "fail")
    assert done.returncode == 7, done.stdout + done.stderr
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("told:"))[5:])
    (sent, *_) = unpack(told["environment"][CARRIED])
    assert (sent.name, sent.dirty, len(sent.untracked)) == ("project", False, 60)
    assert 20 < sent.diff.count("diff --git") == 60 - len(sent.left_out)


def test_job_with_a_killed_entrypoint_is_reported_as_lost(head: Head, stand_in: Path) -> None:
    done = head.call("submit", "--working-dir", str(stand_in), "--", "run", "die")
    assert done.returncode == 1
    assert "is lost (exit code 1)" in done.stdout
    assert "orchestrator submit -- run --resume latest" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(IN_PROCESS, id="local"),
        pytest.param(
            ON_RAY, id="ray", marks=pytest.mark.faults
        ),  # takes long: three more processes load Ray or PyTorch
    ],
)
def test_job_continues_after_its_client_leaves_and_can_be_stopped(words: list[str], head: Head) -> None:
    store = Store(head.root / "home")
    watching = head.start("submit", "--", *words)
    job = _line(watching, "Submitted").split()[1]
    run = _line(watching, "Run ").split()[1].rstrip(":")
    _line(watching, "epoch ")
    watching.send_signal(signal.SIGINT)
    rest, _ = watching.communicate(timeout=HANG_SECONDS)
    assert watching.returncode == 130
    assert f"orchestrator stop {job}" in rest

    waiting = head.start("status", "--wait", "--json", job)
    following = head.start("logs", "-f", job)
    assert _line(following, f"Run {run}")
    stopped = head.call("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    assert f"{job} interrupted (exit code 130)" in stopped.stdout
    told, _ = waiting.communicate(timeout=HANG_SECONDS)
    assert waiting.returncode == 130
    assert json.loads(told)["status"] == "interrupted"
    followed, _ = following.communicate(timeout=HANG_SECONDS)
    assert f"orchestrator submit -- run --resume {run}" in followed  # the run had time to save
    assert "Nothing to stop" in head.call("stop", job).stdout
    assert json.loads(head.call("status", "--json", run).stdout)["status"] == "interrupted"
    assert set(store.query("select status from runs")) == {("KILLED",)}


@pytest.mark.faults
def test_job_killed_by_ray_before_saving_is_reported_as_interrupted(head: Head) -> None:
    """A plain job has 3 s to end; an epoch of this one takes longer than any test."""
    store = Store(head.root / "home")
    before = set(store.query("select run_uuid from runs"))
    ray = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--no-wait", "--submission-id", "slow"]
    path = json.dumps({"env_vars": {"PYTHONPATH": f"{THIRD_PARTY}{os.pathsep}{ROOT}"}})
    entrypoint = ["python", "-m", "orchestrator", *SLOW]
    subprocess.run(
        [*ray, "--runtime-env-json", path, "--", *entrypoint], env=head.environment, check=True, capture_output=True
    )
    following = head.start("logs", "-f", "slow")
    run = _line(following, "Run ").split()[1].rstrip(":")
    deadline = time.monotonic() + 600
    while set(store.query("select run_uuid from runs")) == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stopped = head.call("stop", "slow")
    following.communicate(timeout=60)
    told = json.loads(head.call("status", "--json", run).stdout)
    assert (told["status"], told["exit_code"]) == ("interrupted", 130), stopped.stdout + stopped.stderr
    assert told["ended"] is None, "the run has saved: Ray did not kill it"
    assert set(store.query("select status from runs")) == {("KILLED",)}


def test_missing_or_wrong_token_error_names_ray_auth_token(head: Head) -> None:
    for environment in ({}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong"}):
        done = subprocess.run(
            [*ORCHESTRATOR, "submit", "--", *SHORT], env=head.anonymous | environment, capture_output=True, text=True
        )
        assert done.returncode == 3, done.stderr
        assert "RAY_AUTH_TOKEN" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_submit_error_names_the_address_where_no_dashboard_answers(head: Head) -> None:
    port = free_port()
    done = head.call("submit", "--address", f"http://127.0.0.1:{port}", "--", *SHORT)
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr


@pytest.mark.faults
@pytest.mark.long
def test_a_driver_saves_before_its_head_ends(initialised_store: Path) -> None:
    """The head gets SIGTERM, as when its pod is deleted: Ray has its grace period and does not signal the driver."""
    with running(initialised_store) as head:
        watching = head.start("submit", "--", *ON_RAY)
        run = _line(watching, "Run ").split()[1].rstrip(":")
        _line(watching, "epoch ")
        head.process.send_signal(signal.SIGTERM)
        watching.communicate(timeout=180)
        record = json.loads((head.root / "home" / "storage" / run / "record.json").read_text())
        assert (record["status"], record["exit_code"]) == ("interrupted", 130)
        assert record["ended"], "the driver was killed before it saved"
        assert Store(head.root / "home").query("select status from runs") == [("KILLED",)]


@pytest.mark.faults
def test_clients_fail_with_the_resume_command_when_the_head_is_killed(head: Head) -> None:
    """The last test of the module, because it kills the head."""
    impatient = (
        "from orchestrator.jobs import dashboard as d; d.PATIENCE_SECONDS = 1; wait = d.Dashboard.wait; "
        "d.Dashboard.wait = lambda self, job: print('waits', flush=True) or wait(self, job); "
        "from orchestrator.cli.app import main; main()"
    )

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", impatient, *words], env=head.environment, stdout=subprocess.PIPE, text=True
        )

    submitting = start("submit", "--", *LONG, "--name", "named")
    job = _line(submitting, "Submitted").split()[1]
    assert _line(submitting, "Running entrypoint")
    following, waiting = start("logs", "-f", job), start("status", "--wait", job)
    assert _line(following, "Running entrypoint")
    assert _line(waiting, "waits")
    head.kill()
    for process in (submitting, following, waiting):
        out, _ = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 1, out
        assert "No Ray dashboard answers" in out
        assert "orchestrator submit -- run --resume named" in out
