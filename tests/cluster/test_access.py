"""Authentication, listening addresses and leaks of secrets, tested on the real topology."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.server import get_app_client
from mlflow.tracking import MlflowClient

from orchestrator.errors import UNAVAILABLE
from tests.cluster.topology import User
from tests.support.commands import SPACES, Command
from tests.support.ports import free_port

SEARCH = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "--trials", "2", "--concurrency", "2"]
PASSWORD = "a-long-password"
LOOPBACK = ("127.", "::1", "::ffff:127.")


def refused(command: Command, *words: str) -> None:
    """Check that the command ends with exit code 3 and one sentence that names the settings to change."""
    assert command.end() == UNAVAILABLE, command.text()
    assert len(command.text().splitlines()) == 1, command.text()
    for word in words:
        assert word in command.text()


# Authentication


@pytest.mark.parametrize("token", [None, "0123456789abcdef" * 2])
def test_missing_or_wrong_cluster_token_is_refused(
    user: User, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    if token is None:
        monkeypatch.delenv("RAY_AUTH_MODE")
        monkeypatch.setenv("HOME", str(user.home))  # a folder without a token of another cluster
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    submitted = user.start("submit", "--", *SEARCH)
    monkeypatch.setenv("RAY_ADDRESS", user.topology.head.address)
    driven = user.start(*SEARCH)
    for command in (submitted, driven):
        refused(command, "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN")


def test_missing_or_wrong_mlflow_password_is_refused(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    wrong = user.start(*SEARCH, "--local")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    missing = user.start("promote", "rec", "--to", "champion")
    for command in (wrong, missing):
        refused(command, "HTTP 401", "MLFLOW_TRACKING_PASSWORD")


def test_doctor_reaches_mlflow_with_the_password(user: User) -> None:
    doctor = user.submit("doctor")
    doctor.end()
    assert "HTTP Error" not in doctor.text(), doctor.text()
    assert re.search(r"ok +mlflow +.* runs '3\.", doctor.text()), doctor.text()


def test_accounts_share_experiments_and_a_guest_is_refused(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account ``ada`` is created as the deployed server creates accounts; ``guest`` lacks their role."""
    server = user.topology.mlflow
    words = ("run", "toy", "epochs=2", "refit=false", "--local")
    first = user.start(*words)
    assert first.end() == 0, first.text()
    number = MlflowClient(server.uri, server.uri).get_experiment_by_name(user.experiment).experiment_id
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", server.admin_password)
        get_app_client("basic-auth", server.uri).create_user("guest", PASSWORD)
    server.make_account("ada", PASSWORD)

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "guest")
    refused(user.start(*words), f"guest may not write to the experiment '{user.experiment}'", "MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    second = user.start(*words)
    assert second.end() == 0, second.text()
    assert len(MlflowClient(server.uri, server.uri).search_runs([number])) == 2


def test_mlflow_refuses_a_host_name_that_is_not_allowed(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding, in which a foreign page's host name resolves to this machine, gets no access."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", user.topology.mlflow.uri.replace("127.0.0.1", "localhost"))
    refused(user.start(*SEARCH, "--local"), "HTTP 403", "--allowed-hosts")


# Listening addresses


def listening(command: Command) -> dict[str, str]:
    """Every address on which the command's processes listen, with the process's name."""
    found = {}
    main = psutil.Process(command.process.pid)
    for process in [main, *main.children(recursive=True)]:
        try:
            for socket in process.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    found[f"{socket.laddr.ip} {socket.laddr.port}"] = process.name()
        except psutil.Error:  # the process has ended
            continue
    return found


def check_loopback(found: dict[str, str]) -> None:
    assert {address: who for address, who in found.items() if not address.startswith(LOOPBACK)} == {}


@pytest.fixture
def alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a cluster or a server: all listening processes are started by the command."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))  # Ray's token is created there
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # memory of other programs must not matter
    return home


def test_a_cluster_that_is_started_here_listens_on_loopback(alone: Path) -> None:
    command = Command(alone, *SEARCH, "epochs=1000", "slow=0.2")
    try:
        command.until(lambda: command.workers("Trainable.train"))  # between two calls the name has only the class
        found = listening(command)
        assert {"gcs_server", "raylet"} <= set(found.values())
        check_loopback(found)
        token = alone / ".ray" / "auth_token"
        assert token.stat().st_mode & 0o077 == 0
    finally:
        command.ctrl_c()
        command.end()


def test_the_ui_listens_on_loopback(alone: Path) -> None:
    port = free_port()
    command = Command(alone, "ui", "--port", str(port))
    try:
        command.until(lambda: "MLflow UI:" in command.text())
        found = listening(command)
        assert f"127.0.0.1 {port}" in found
        check_loopback(found)
    finally:
        command.ctrl_c()
        command.end()


# Secrets


def command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue


def leaks(secrets: dict[str, str], place: Path) -> list[str]:
    """Which secret occurs in which file below ``place``."""
    found = []
    for file in place.rglob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            found += [f"{name} in {file}" for name, secret in secrets.items() if secret.encode() in content]
    return found


def test_secrets_do_not_appear_in_processes_files_rows_or_logs(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked are command lines, the job's description and log, the run's files and rows, and Ray's own logs."""
    topology = user.topology
    secrets = {
        "the MLflow password": topology.mlflow.password,
        "the database's password": topology.postgres.password,
        "Ray's token": topology.token,
        "an S3 key": "wJalrXUtnFEMIK7MDENGbPxRfiCY",
        "a webhook": "T00000000B00000000XXXXXXXX",
    }
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets["an S3 key"])
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", f"http://127.0.0.1:9/services/{secrets['a webhook']}")
    sweep = user.submit(*SEARCH, "--cpus-per-worker", "1", "epochs=40", "slow=0.1", "--name", "secretive")
    seen: set[str] = set()
    while sweep.process.poll() is None:
        seen |= {name for line in command_lines() for name, secret in secrets.items() if secret in line}
    assert sweep.end() == 0, sweep.text()
    assert seen == set()
    assert [name for name, secret in secrets.items() if secret in sweep.text()] == []
    assert leaks(secrets, user.home) == []
    assert leaks(secrets, topology.mlflow.artifacts) == []
    rows = [user.store.query(f"select key, value from {table}") for table in ("tags", "params")]
    assert [name for name, secret in secrets.items() if secret in str(rows)] == []
    jobs = json.dumps(ask(topology.head.jobs, topology.token))
    assert "secretive" in jobs
    assert [name for name, secret in secrets.items() if secret in jobs] == []
    for node in (topology.head, *topology.nodes):
        logs = [folder for folder in node._folder.rglob("logs") if folder.is_dir()]
        assert logs
        assert [leak for folder in logs for leak in leaks(secrets, folder)] == []


def ask(dashboard: str, token: str) -> Any:
    """The dashboard's answer about its jobs."""
    request = urllib.request.Request(f"{dashboard}/api/jobs/", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
