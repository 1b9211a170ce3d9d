"""A real PostgreSQL server, and MLflow on it with passwords, allowed hosts and proxied artifacts. Tests stop both."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg2

from tests.support.commands import ROOT
from tests.support.ports import free_port, http_status
from tests.support.waiting import until

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
"""The folders of PostgreSQL's programs on Debian, the newest last."""


def postgres_binaries() -> Path | None:
    """The folder of the newest installed server's programs."""
    on_path = shutil.which("initdb")
    return BINARIES[-1] if BINARIES else Path(on_path).parent if on_path else None


class Postgres:
    """A PostgreSQL server on loopback with a password. It refuses to run as root, so root runs it as ``postgres``."""

    def __init__(self, folder: Path) -> None:
        found = postgres_binaries()
        assert found is not None, "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        self._binaries, self._folder, self._data = found, folder, folder / "data"
        self._user = "postgres" if os.geteuid() == 0 else None
        self.port = free_port()
        self.password = secrets.token_hex(8)
        folder.mkdir()
        folder.chmod(0o755)
        self._data.mkdir()
        (folder / "password").touch(mode=0o600)
        (folder / "password").write_text(self.password)
        if self._user:
            for path in (self._data, folder / "password"):
                shutil.chown(path, self._user)
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "scram-sha-256", "--no-sync",
                  "--locale=C.UTF-8", "--encoding=UTF8", f"--pwfile={folder / 'password'}")  # fmt: skip

    def uri(self, database: str = "mlflow") -> str:
        """The server's address with the password. It names the driver because SQLAlchemy 2.1 has another default."""
        return f"postgresql+psycopg2://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self._data} -F"
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self._data / "server.log", "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: open transactions are rolled back and all connections are closed."""
        self._run("pg_ctl", "stop", "-w", "-D", self._data, "-m", mode)

    def running(self) -> bool:
        return (self._data / "postmaster.pid").exists()

    def query(self, *statements: str, database: str = "mlflow") -> list[tuple[Any, ...]]:
        """Run the statements in one session and return the rows of the last one."""
        connection = psycopg2.connect(self.uri(database).replace("+psycopg2", ""))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def kill(self) -> None:
        """Stop the server as in a crash. Committed data are there again after the next start."""
        if self.running():
            self.stop("immediate")

    def _run(self, program: str, *words: object) -> None:
        done = subprocess.run(
            [self._binaries / program, *map(str, words)], cwd=self._data, text=True, user=self._user,
            group=self._user, extra_groups=None if self._user is None else [],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


class Mlflow:
    """MLflow as it is deployed: on PostgreSQL and with passwords. It can be killed and started again.

    Nodes and users log in as ``training``, which is not an administrator.
    """

    user, script = "training", ROOT / "deploy" / "docker" / "mlflow_server.py"

    def __init__(self, folder: Path, database: Postgres, environment: Mapping[str, str]) -> None:
        folder.mkdir()
        self.artifacts = folder / "artifacts"
        self.password, self.admin_password = secrets.token_hex(8), secrets.token_hex(8)
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        settings = folder / "auth.ini"
        deployed = self.script.with_name("auth.ini").read_text()
        settings.write_text(re.sub("(?m)^database_uri = .*$", f"database_uri = {database.uri('users')}", deployed))
        self._environment = {
            **environment,
            "MLFLOW_BACKEND_STORE_URI": database.uri(),  # not an argument: all users can read those
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.admin_password,
            **self.credentials,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    @property
    def credentials(self) -> dict[str, str]:
        """The variables that a client's environment needs."""
        return {"MLFLOW_TRACKING_USERNAME": self.user, "MLFLOW_TRACKING_PASSWORD": self.password}

    def start(self) -> None:
        options = {
            "host": "127.0.0.1", "port": self.port, "workers": 2,
            "allowed-hosts": f"127.0.0.1:{self.port}", "artifacts-destination": self.artifacts,
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in options.items()]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, self.script, "--serve-artifacts", *words],
                stdout=log, stderr=log, cwd=self._folder, start_new_session=True, env=self._environment,
            )  # fmt: skip

    def make_account(self, name: str, password: str) -> None:
        """Create an account for a person, as the administrator does."""
        subprocess.run(
            [sys.executable, self.script, "account", name], input=f"{password}\n", text=True, env=self._environment,
            check=True, capture_output=True, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """Kill all processes of the server at once, without letting them finish a request."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> None:
        """Wait until the server answers and demands a login."""
        until(self._answers, pause=0.1, why=self.log)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return http_status(f"{self.uri}/api/2.0/mlflow/experiments/search", timeout=5) == 401

    def log(self) -> str:
        return (self._folder / "server.log").read_text()
