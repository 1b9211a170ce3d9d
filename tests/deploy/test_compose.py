"""``deploy/compose.yaml`` on real containers: a sweep that loses its worker and its driver, up to a served model.

Needs Docker with compose. ``ORCHESTRATOR_COMPOSE_OVERRIDE`` names another compose file that is added, for settings that
only this machine needs (such as a network for builds). The images stay; everything else is removed at the end.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_ports
from tests.support.waiting import until
from tests.unit.deploy.manifests import BACKUP, DEPLOY, EXAMPLE, ROOT, commands_after

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
SECONDS = 1800.0
PROJECT = "orchestrator-test"
ADA = ("ada", "correct horse battery")
SWEEP = ["recommender", "dataset=synthetic", "epochs=300", "--space", "mf", "--scheduler", "none", "--pack", "off"]


class Stack:
    """The stack under its own project name, and the commands that a laptop runs against it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        names = ("MLFLOW_PORT", "RAY_PORT", "S3_PORT")
        self.values = {name: value or secrets.token_hex(24) for name, value in EXAMPLE.items()}
        self.values |= dict(zip(names, map(str, free_ports(3)), strict=True))
        self.values |= {"RAY_DEVICE": "cpu", "RAY_SHM_SIZE": "1gb", "RAY_NOFILE": "20000", "RAY_HEAD_MEMORY": "6g"}
        self.values["MLFLOW_ALLOWED_ORIGINS"] = f"http://localhost:{self.values['MLFLOW_PORT']}"
        (root / ".env").write_text("".join(f"{name}={value}\n" for name, value in self.values.items()))
        override = os.environ.get("ORCHESTRATOR_COMPOSE_OVERRIDE")
        self._compose = ["docker", "compose", "--project-name", PROJECT, "--env-file", str(root / ".env")]
        self._compose += [word for file in (str(DEPLOY / "compose.yaml"), override) if file for word in ("-f", file)]
        self.mlflow = f"http://localhost:{self.values['MLFLOW_PORT']}"
        self.training = ("training", self.values["MLFLOW_TRAINING_PASSWORD"])
        foreign = ("RAY_", "ORCHESTRATOR_", "MLFLOW_")
        self.laptop = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
            "PYTHONPATH": str(ROOT),
            "HOME": str(root),
            "RAY_API_SERVER_ADDRESS": f"http://localhost:{self.values['RAY_PORT']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.values["RAY_AUTH_TOKEN"],
            "MLFLOW_TRACKING_USERNAME": self.training[0],
            "MLFLOW_TRACKING_PASSWORD": self.training[1],
        }

    def compose(self, *words: str, given: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [*self._compose, *words], input=given, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout if check else f"{done.returncode} {done.stdout} {done.stderr}"

    def shell(self, lines: list[str]) -> None:
        """Run lines of the documentation page, with the names of this stack."""
        ours = {"docker compose -f deploy/compose.yaml": shlex.join(self._compose), "orchestrator_": f"{PROJECT}_"}
        text = "\n".join(lines)
        for theirs, own in ours.items():
            assert theirs in text
            text = text.replace(theirs, own)
        done = subprocess.run(
            ["bash", "-euxc", text], cwd=self.root, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def up(self) -> None:
        self.compose("up", "--detach", "--wait")

    def call(self, *words: str, code: int = 0, **environment: str) -> str:
        """``orchestrator <words>`` on the laptop."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *words],
            env=self.laptop | environment, capture_output=True, text=True, timeout=SECONDS, cwd=self.root,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words], env=self.laptop, cwd=self.root, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ask(
        self, path: str, login: tuple[str, str] | None, body: dict[str, Any] | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and answer of MLflow's API."""
        request = urllib.request.Request(
            f"{self.mlflow}/api/2.0/mlflow/{path}", data=json.dumps(body).encode() if body is not None else None
        )
        request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name, value)
        if login:
            request.add_header("Authorization", f"Basic {b64encode(':'.join(login).encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def rows(self) -> int:
        """The number of training losses of trials in MLflow's database."""
        return int(self.sql("select count(*) from metrics where key = 'train/loss'"))

    def sql(self, query: str) -> str:
        return self.compose("exec", "-T", "postgres", "psql", "-qAt", "-U", "mlflow", "mlflow", "-c", query).strip()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("docker") is None or subprocess.run(["docker", "compose", "ls"], capture_output=True).returncode:
        pytest.skip("Docker with compose does not answer (DOCKER_HOST)")
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.compose("build")
        stack.up()
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5", check=False)


@pytest.fixture(scope="module")
def swept(stack: Stack) -> Stack:
    """A sweep that loses its worker's container and its driver, resumed to its end with a registered model."""
    first = stack.start("submit", "--", "sweep", *SWEEP, "--trials", "4", "--name", "mf", "--register", "mf")
    try:
        until(lambda: stack.rows() > 20, 300, pause=1)
        stack.compose("kill", "--signal", "KILL", "ray-worker")
        before = stack.rows()
        stack.compose("start", "ray-worker")
        until(lambda: stack.rows() > before + 20, 300, pause=1)
        stack.compose("exec", "-T", "ray-head", "pkill", "-KILL", "-f", "orchestrator sweep")
        assert first.wait(SECONDS) == 1
        assert "orchestrator submit -- sweep --resume mf" in first.communicate()[0]
    finally:
        first.kill()
    stack.call("submit", "--", "sweep", "--resume", "mf")
    return stack


def test_doctor_as_a_job(stack: Stack) -> None:
    told = stack.call("submit", "--", "doctor")
    assert "s3://orchestrator-runs can be written" in told


def test_nothing_is_lost_or_doubled(swept: Stack) -> None:
    """Each completed trial has its 300 epochs once, the sweep has those of its winner, and no run is running."""
    assert swept.sql("select count(*) from runs where status = 'RUNNING'") == "0"
    doubled = "select count(*) from (select 1 from metrics group by run_uuid, key, step having count(*) > 1) as twice"
    assert swept.sql(doubled) == "0"
    found = swept.sql("select run_uuid, count(*) from metrics where key = 'train/loss' group by run_uuid").splitlines()
    assert [line.split("|")[1] for line in found] == ["300"] * 5, found


def test_a_laptop_promotes_and_predicts(swept: Stack) -> None:
    swept.call("promote", "mf", "--to", "champion", "--tracking", swept.mlflow)
    (swept.root / "users.csv").write_text("user\n3\n")
    told = swept.call("predict", "mf@champion", "--input", "users.csv", "--tracking", swept.mlflow)
    assert "items" in told or "item" in told, told


def test_a_person_cannot_change_the_model_of_another(swept: Stack) -> None:
    words = ["exec", "-T", "mlflow", "python", "/opt/mlflow/mlflow_server.py", "account", "ada"]
    swept.compose(*words, given=f"{ADA[1]}\n")
    assert swept.ask("registered-models/get?name=mf", ADA)[0] == 200
    body = {"name": "mf", "alias": "champion", "version": "1"}
    assert swept.ask("registered-models/alias", ADA, body)[0] == 403
    assert swept.ask("registered-models/alias", swept.training, body)[0] == 200


def test_refusals(stack: Stack) -> None:
    path = "experiments/search?max_results=1"
    assert stack.ask(path, None)[0] == 401
    assert stack.ask(path, ("training", "wrong"))[0] == 401
    assert stack.ask(path, stack.training, Host="evil.example.com")[0] == 403
    assert "token" in stack.call("jobs", RAY_AUTH_TOKEN="0" * 48, code=3)


def test_a_node_has_neither_key_nor_way_to_the_models(stack: Stack) -> None:
    assert "ARTIFACTS" not in stack.compose("exec", "-T", "ray-worker", "env")
    assert stack.values["ARTIFACTS_SECRET_KEY"] not in stack.compose("exec", "-T", "ray-worker", "env")
    reach = "import socket; socket.create_connection(('{}', 9000), 5)"
    stack.compose("exec", "-T", "ray-worker", "python", "-c", reach.format("s3"))
    told = stack.compose("exec", "-T", "ray-worker", "python", "-c", reach.format("artifacts"), check=False)
    assert socket.gaierror.__name__ in told
    for service in ("ray-worker", "ray-head", "mlflow", "postgres"):
        assert "Read-only file system" in stack.compose("exec", "-T", service, "touch", "/opt/new", check=False)


def check_all_is_there(stack: Stack, rows: int) -> None:
    """Check the metrics, the runs, the model and the accounts."""
    assert stack.rows() == rows
    store = {
        "AWS_ENDPOINT_URL_S3": f"http://localhost:{stack.values['S3_PORT']}",
        "AWS_ACCESS_KEY_ID": stack.values["S3_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": stack.values["S3_SECRET_KEY"],
        "AWS_DEFAULT_REGION": stack.values["S3_REGION"],
    }
    assert re.search(r"^mf +sweep +finished", stack.call("ls", "--storage", "s3://orchestrator-runs", **store), re.M)
    stack.call("predict", "mf@champion", "--input", "users.csv", "--tracking", stack.mlflow)
    assert stack.ask("registered-models/get?name=mf", ADA)[0] == 200
    assert stack.ask("registered-models/get?name=mf", (ADA[0], "wrong"))[0] == 401


def test_a_stack_that_comes_back(swept: Stack) -> None:
    rows = swept.rows()
    swept.compose("down", "--timeout", "60")
    swept.up()
    check_all_is_there(swept, rows)


def test_a_backup_restores_a_stack_that_has_lost_its_volumes(swept: Stack) -> None:
    """With the commands of the documentation page."""
    backup, restore = commands_after(BACKUP)
    rows = swept.rows()
    swept.shell(backup)
    swept.compose("down", "--volumes", "--timeout", "60")
    swept.shell(restore)
    check_all_is_there(swept, rows)
