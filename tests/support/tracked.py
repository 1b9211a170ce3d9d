"""A real MLflow server that can be killed, and direct reads of a store's database."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from orchestrator.engine.loop import Row
from orchestrator.tracking.tracker import Tracker
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS

OWNER = "toy-20261121-083000-ab12"
NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once


class Server:
    """A real ``mlflow server`` on a copy of the initialised store, which can be killed and restarted."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.database = folder / "mlflow.db"
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("VACUUM INTO ?", (str(self.database),))
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        places = ["--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination", str(self._folder)]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words, *places],
                stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip

    def wait(self) -> str:
        """Wait until the server answers. Returns its address."""
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return self.uri
            except OSError:
                time.sleep(0.1)
        raise AssertionError((self._folder / "server.log").read_text())

    def pause(self) -> None:
        """Accept requests without answering."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def abandon(tracker: Tracker) -> None:
    """End a tracker as if its process had died."""
    tracker._deadline = 0
    tracker._closing.set()


def row(epoch: int, **metrics: float) -> Row:
    return Row(epoch, 1_700_000_000.25 + epoch, {f"train/{name}": value for name, value in metrics.items()})


def rows(first: int, last: int) -> list[Row]:
    return [row(epoch, loss=epoch / 8, norm=-epoch) for epoch in range(first, last + 1)]


def query(database: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql, values).fetchall()


def metrics(database: Path, key: str = OWNER) -> list[tuple[Any, ...]]:
    """(name, step, value, timestamp) of the run ``key``, from the store's table."""
    sql = (
        "select m.key, m.step, m.value, m.timestamp from metrics m join tags t on t.run_uuid = m.run_uuid "
        "where t.key = 'orchestrator.key' and t.value = ? order by m.key, m.step, m.timestamp"
    )
    return query(database, sql, key)


def expected(*batches: list[Row]) -> list[tuple[Any, ...]]:
    flat = [
        (name, r.epoch, v, round(r.time * 1000)) for batch in batches for r in batch for name, v in r.metrics.items()
    ]
    return sorted(flat)


def tags(database: Path, key: str = OWNER) -> dict[str, str]:
    sql = (
        "select key, value from tags where run_uuid = "
        "(select run_uuid from tags where key = 'orchestrator.key' and value = ?)"
    )
    return dict(query(database, sql, key))


def statuses(database: Path) -> dict[str, str]:
    sql = "select t.value, r.status from runs r join tags t on t.run_uuid = r.run_uuid where t.key = 'orchestrator.key'"
    found = query(database, sql)
    assert len(dict(found)) == len(found), f"a run was opened twice: {found}"
    return dict(found)


@contextmanager
def full_disk(path: Path, room: int = 0) -> Iterator[None]:
    """Simulate a full disk: ``room`` more bytes can be written, even if a line is incomplete."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
