"""A real Ray head with token authentication, its dashboard and its job API."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from tests.support.commands import ROOT, THIRD_PARTY
from tests.support.ports import free_ports, http_status
from tests.support.waiting import HANG_SECONDS

ORCHESTRATOR = [sys.executable, "-m", "orchestrator"]
STARTED = "Ray runtime started"
"""Printed by ``ray start`` once the node has registered. Ray gives it 30 seconds, then ends the head."""


class Head:
    """A Ray head on ports of its own, with its own token, and the environment of a client of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ports = free_ports(6)
        self.address = f"http://127.0.0.1:{ports[1]}"
        (root / "token").write_text("0123456789abcdef" * 2)
        foreign = ("RAY_", "ORCHESTRATOR_", "MLFLOW_")
        self.anonymous = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
            "HOME": str(root),
            "PYTHONPATH": f"{THIRD_PARTY}{os.pathsep}{ROOT}",  # the toy, for the jobs too
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the jobs' python
            "ORCHESTRATOR_HOME": str(root / "home"),
            "RAY_API_SERVER_ADDRESS": self.address,
            "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",
        }
        self.environment = self.anonymous | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(root / "token")}
        options = {
            "port": ports[0], "dashboard-port": ports[1], "dashboard-agent-listen-port": ports[2],
            "dashboard-agent-grpc-port": ports[3], "ray-client-server-port": ports[4],
            "metrics-export-port": ports[5], "min-worker-port": 0, "max-worker-port": 0,
            "include-dashboard": "true", "num-cpus": 2, "num-gpus": 0, "object-store-memory": 100_000_000,
            "temp-dir": root / "ray",
        }  # fmt: skip
        self.log = (root / "head.log").open("w")
        self.process = psutil.Popen(
            [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--disable-usage-stats",
             *(f"--{name}={value}" for name, value in options.items())],
            env=self.environment, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def wait(self) -> None:
        """Until the node has started and the dashboard answers, which it does before the node has."""
        deadline = time.monotonic() + HANG_SECONDS
        while STARTED not in (text := (self.root / "head.log").read_text()) or self.answer() is None:
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
        assert self.answer() == 401, "the head must ask for its token"

    def answer(self) -> int | None:
        return http_status(f"{self.address}/api/version", timeout=2)

    def kill(self) -> None:
        """All its processes, the jobs' included: they live in sessions of their own."""
        if self.process.is_running():
            for process in [*self.process.children(recursive=True), self.process]:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            self.process.wait(HANG_SECONDS)
        self.log.close()

    def call(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """``orchestrator <words>`` as a user's process."""
        return subprocess.run(
            [*ORCHESTRATOR, *words], env=self.environment | environment, capture_output=True, text=True,
            timeout=HANG_SECONDS, cwd=self.root,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*ORCHESTRATOR, *words], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@contextmanager
def running(initialised_store: Path) -> Iterator[Head]:
    """A head whose home has an empty MLflow store."""
    root = Path(tempfile.mkdtemp(prefix="jobs-"))  # short: Ray's socket paths have a limit
    (root / "home").mkdir()
    with closing(sqlite3.connect(initialised_store)) as connection:
        connection.execute("VACUUM INTO ?", (str(root / "home" / "mlflow.db"),))
    (root / "home" / "mlflow.ready").touch()
    try:
        head = _started(root)
        try:
            yield head
        finally:
            head.kill()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _started(root: Path, tries: int = 3) -> Head:
    """A head that answers. Ray gives its start 30 seconds, which a busy machine may exceed."""
    head = Head(root)
    try:
        head.wait()
    except AssertionError:
        head.kill()
        if tries == 1:
            raise
        return _started(root, tries - 1)
    return head
