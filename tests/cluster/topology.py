"""The topology of ``deploy/`` without containers: PostgreSQL, MLflow, a Ray head and two workers, and a user of it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from mlflow import MlflowClient

from tests.cluster.nodes import Node
from tests.cluster.services import Mlflow, Postgres
from tests.support.commands import ROOT, THIRD_PARTY, Command, Store
from tests.support.waiting import until

NODES, CPUS = 2, 2
"""Worker nodes, and the logical CPUs of each; the head has none, so that all work is on the worker nodes."""

STARTING_SECONDS = 600
"""The limit until all processes of a sweep train: eight of them load PyTorch, perhaps on two cores."""

Part = TypeVar("Part", Postgres, Mlflow, Node)

FOREIGN = ("RAY_", "MLFLOW_", "ORCHESTRATOR_")


class Topology:
    """All services and nodes, with their files below ``root``. ``stack`` kills what was started."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        root.chmod(0o755)  # the database runs as another user
        self.token = secrets.token_hex(16)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        base = kept | {
            "HOME": str(root),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the jobs' python
            "OMP_NUM_THREADS": "1",
        }

        def started(part: Part) -> Part:
            stack.callback(part.kill)
            part.start()
            return part

        self.postgres = started(Postgres(root / "postgres"))
        for name in ("mlflow", "users"):
            self.postgres.query(f"create database {name}", database="postgres")
        self.mlflow = started(Mlflow(root / "mlflow", self.postgres, base))
        self.secrets = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token} | self.mlflow.credentials
        environment = base | self.secrets | {
            "PYTHONPATH": f"{THIRD_PARTY}{os.pathsep}{ROOT}",
            "ORCHESTRATOR_CACHE": str(root / "cache"),
            "RAY_memory_monitor_refresh_ms": "0",  # memory of other programs must not matter
            "RAY_worker_niceness": "0",
        }  # fmt: skip
        self.head = started(Node(root / "head", "127.0.0.10", 0, environment))
        self.head.wait()
        self.nodes = [
            started(Node(root / f"node{number}", f"127.0.0.{10 + number}", CPUS, environment, self.head.address))
            for number in range(1, 1 + NODES)
        ]
        self.mlflow.wait()
        for node in self.nodes:
            node.wait()
        until(lambda: len(self.alive()) == 1 + NODES, pause=0.1, why=lambda: [node.log() for node in self.nodes])

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables that a user sets to reach the topology: addresses, token, password."""
        return self.secrets | {"RAY_API_SERVER_ADDRESS": self.head.jobs, "MLFLOW_TRACKING_URI": self.mlflow.uri}

    def alive(self) -> dict[str, str]:
        """Node id to address, for the nodes that the head considers alive."""
        request = urllib.request.Request(
            f"{self.head.jobs}/api/v0/nodes", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                nodes = json.load(response)["data"]["result"]["result"]
        except OSError:
            return {}
        return {node["node_id"]: node["node_ip"] for node in nodes if node["state"] == "ALIVE"}

    def kill_node(self, number: int) -> None:
        """SIGKILL to worker node ``number`` (from 0): its raylet and everything below."""
        self.nodes[number].kill()

    def start_node(self, number: int, **environment: str) -> None:
        """Start the node again, and wait until the head lists the new node and has removed the old one."""
        node, before = self.nodes[number], set(self.alive())
        node.start(**environment)
        node.wait()

        def there() -> bool:
            ids = {identity for identity, ip in self.alive().items() if ip == node.ip}
            return len(ids) == 1 and not ids & before

        until(there, pause=0.1, why=node.log)

    def restart_postgres(self, mode: str = "fast") -> None:
        self.postgres.stop(mode)
        self.postgres.start()

    def stop_mlflow(self) -> None:
        self.mlflow.kill()

    def start_mlflow(self) -> None:
        """Start it, and wait until it answers."""
        self.mlflow.start()
        self.mlflow.wait()

    def mend(self) -> None:
        """Start all parts that are down."""
        if not self.postgres.running():
            self.postgres.start()
        if not self.mlflow.running():
            self.start_mlflow()
        for number, node in enumerate(self.nodes):
            if not node.running():
                self.start_node(number)


class Database(Store):
    """One experiment of the tracking store, read directly from PostgreSQL."""

    def __init__(self, postgres: Postgres, experiment: str) -> None:
        self._postgres = postgres
        here = f"experiment_id = (select experiment_id from public.experiments where name = '{experiment}')"
        views = {"runs": here} | dict.fromkeys(
            ("tags", "metrics", "params"), "run_uuid in (select run_uuid from pg_temp.runs)"
        )
        self._narrow = [  # a temporary view hides the table of its name
            f"create temporary view {table} as select * from public.{table} where {which}"
            for table, which in views.items()
        ]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self._postgres.query(*self._narrow, sql)


class Job(Command):
    """A submitted job, followed by the client that submitted it: its log is the client's output."""

    def __init__(self, topology: Topology, home: Path, *words: str, client: Sequence[str] = ()) -> None:
        self._topology = topology
        super().__init__(home, "submit", *client, "--json", "--", *words)

    @property
    def id(self) -> str:
        return str(self.until(lambda: "Submitted " in self.text() and self.text().split("Submitted ")[1].split()[0]))

    def driver(self) -> psutil.Process:
        """The process of ``orchestrator`` on the head."""

        def found() -> psutil.Process | None:
            for process in self._topology.head.processes("-m orchestrator"):
                with suppress(psutil.Error):
                    configuration = process.environ().get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
                    if self.id in configuration and process.name() != "sh":
                        return process
            return None

        driver: psutil.Process = self.until(found)
        return driver

    def kill_driver(self) -> None:
        self.driver().kill()


class User:
    """A user with an experiment, a home and shared storage of their own, one for each test."""

    def __init__(self, topology: Topology, home: Path, experiment: str) -> None:
        self.topology, self.home, self.experiment = topology, home, experiment
        self.store = Database(topology.postgres, experiment)
        self._started: list[Command] = []

    def submit(self, *words: str, client: Sequence[str] = ()) -> Job:
        """``orchestrator submit <client> -- <words>``."""
        job = Job(self.topology, self.home, *words, client=client)
        self._started.append(job)
        return job

    def start(self, *words: str) -> Command:
        """Start ``orchestrator <words>`` outside the cluster."""
        self._started.append(Command(self.home, *words))
        return self._started[-1]

    def mlflow(self) -> MlflowClient:
        return MlflowClient(self.topology.mlflow.uri, self.topology.mlflow.uri)

    def leave(self) -> None:
        """Kill the commands and jobs that still run."""
        for command in self._started:
            if command.process.poll() is None:
                command.kill()
        for process in self.topology.head.processes("-m orchestrator"):
            with suppress(psutil.NoSuchProcess):
                process.kill()
