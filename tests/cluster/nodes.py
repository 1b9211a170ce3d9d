"""A node of a Ray cluster: one ``ray start`` on its own loopback address, which tests kill and restart."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.ports import free_ports
from tests.support.ray_head import STARTED
from tests.support.waiting import HANG_SECONDS

PORTS = (
    "node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
    "runtime-env-agent-port", "metrics-export-port",
)  # fmt: skip
OBJECT_STORE_BYTES = 80_000_000
STARTS = 3


class Node:
    """``head`` is the address of the head to join. The head itself has None; its jobs and dashboard are at ``jobs``."""

    def __init__(
        self,
        folder: Path,
        ip: str,
        cpus: float,
        environment: Mapping[str, str],
        head: str | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        folder.mkdir()
        self.ip, self.cpus = ip, cpus
        self._folder, self._environment, self._prefix = folder, dict(environment), prefix
        port, dashboard = free_ports(2)
        self.address, self.jobs = f"{ip}:{port}", f"http://127.0.0.1:{dashboard}"
        self._role = (
            ["--head", f"--port={port}", f"--dashboard-port={dashboard}", "--include-dashboard=true"]
            if head is None
            else [f"--address={head}"]
        )
        self.process: psutil.Popen | None = None
        self._added: dict[str, str] = {}

    def start(self, **environment: str) -> None:
        """Start the node; ``environment`` is added to the environment of the node and its workers."""
        self._added = environment
        options = dict(zip(PORTS, free_ports(len(PORTS)), strict=True)) | {
            "node-ip-address": self.ip, "temp-dir": self._folder / "ray", "num-cpus": f"{self.cpus:g}", "num-gpus": 0,
            "object-store-memory": OBJECT_STORE_BYTES, "min-worker-port": 0, "max-worker-port": 0,
        }  # fmt: skip
        ray = [Path(sys.executable).with_name("ray"), "start", "--block", "--disable-usage-stats"]
        with (self._folder / "node.log").open("w") as log:
            self.process = psutil.Popen(
                [*self._prefix, *ray, *self._role, *(f"--{name}={value}" for name, value in options.items())],
                env=self._environment | environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until the node is up. Ray gives a start 30 seconds; if a busy machine exceeds them, start it again."""
        deadline = time.monotonic() + STARTS * HANG_SECONDS
        starts = 1
        while STARTED not in self.log():
            assert time.monotonic() < deadline, self.log()
            if not self.running():
                assert starts < STARTS, self.log()
                self.kill()
                self.start(**self._added)
                starts += 1
            time.sleep(0.1)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the node, workers and jobs included."""
        if self.process is None:
            return
        for process in [self.process, *self.processes()]:  # the parent first: it would restart the others
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(HANG_SECONDS)
        self.process = None

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def processes(self, name: str = "") -> list[psutil.Process]:
        """The node's processes whose command line contains ``name``; workers are called ``ray::`` and their class."""
        if self.process is None:
            return []
        found = []
        try:
            children = self.process.children(recursive=True)
        except psutil.NoSuchProcess:  # the node has ended by itself, as after a preemption
            return []
        for process in children:
            try:
                if name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def log(self) -> str:
        return (self._folder / "node.log").read_text()
