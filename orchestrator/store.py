"""The embedded MLflow store: one SQLite file in the home, made once under a lock."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.settings import embedded_uri
from workloads.data.cache import file_lock

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # our own writer retries, with a spool behind it
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def artifact_root(home: Path) -> Path:
    return home / "artifacts"


def ensure(home: Path) -> None:
    """Make the embedded store if it is not there. Fast when it is; safe when many processes call it at once.

    Several processes that migrate one fresh SQLite file destroy it, hence the lock.
    """
    quiet()
    database, ready = home / "mlflow.db", home / "mlflow.ready"
    if ready.exists() and database.exists():
        return
    try:
        home.mkdir(parents=True, exist_ok=True)
        with file_lock(home / "mlflow.lock"):
            if ready.exists() and database.exists():
                return
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

            SqlAlchemyStore(embedded_uri(home), str(artifact_root(home)))
            with sqlite3.connect(database) as connection:
                connection.execute("PRAGMA journal_mode=WAL")  # the UI reads while a sweep writes
            ready.touch()
    except OSError as error:
        raise UserError(
            f"The home {home} can not be written", got=error.strerror or str(error),
            fix="Set ORCHESTRATOR_HOME to a folder of yours", code=UNAVAILABLE,
        ) from None  # fmt: skip


def quiet() -> None:
    """Set MLflow's switches before it is imported; what the user set stays."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
