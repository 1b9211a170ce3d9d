"""MLflow's SQLite store: one file, by default in the home, created once under a lock."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.provenance import private_files
from orchestrator.storage.settings import sqlite_file, sqlite_uri
from workloads.data.cache import file_lock

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the tracker retries: a request that MLflow repeats creates two runs
    # These would make clients access the artifact store directly, which only the server may be able to reach.
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # otherwise two lines at the end of each run
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def ensure(uri: str, home: Path) -> Path | None:
    """Create the SQLite store ``uri`` if it does not exist; return the folder of the artifacts of new experiments.

    It lies next to the SQLite file, and of a database server in ``home``: MLflow's client would use the current
    folder. None for a tracking server, which defines it itself. Fast when the store exists. Safe when many processes
    call it at once: concurrent migrations corrupt a new SQLite file, hence the lock. Raises UserError (exit 3) when it
    cannot be written.
    """
    quiet()
    database = sqlite_file(uri)
    if database is None:
        return None if uri.startswith("http") else home / "artifacts"
    artifacts = database.parent / "artifacts"
    ready = database.with_suffix(".ready")
    if ready.exists() and database.exists():
        return artifacts
    try:
        private_files.make_folder(database.parent)
        with file_lock(database.with_suffix(".lock")):
            if not (ready.exists() and database.exists()):
                if database.exists():
                    _open(uri, database, artifacts)
                else:
                    _create(database, artifacts)
                with closing(sqlite3.connect(database)) as connection:
                    connection.execute("PRAGMA journal_mode=WAL")  # the UI reads while a sweep writes
                ready.touch()
    except OSError as error:
        raise UserError(
            f"The MLflow store {database} cannot be written",
            got=error.strerror or str(error),
            fix="Set ORCHESTRATOR_HOME to a folder that you can write to",
            code=UNAVAILABLE,
        ) from None
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"The MLflow store {database} cannot be used",
            got=str(error),
            fix="Name another file, or move this one away",
            code=UNAVAILABLE,
        ) from None
    return artifacts


def _open(uri: str, database: Path, artifacts: Path) -> None:
    """Check a store that exists, or create the tables of an empty one."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA schema_version")  # MLflow tries again for minutes if it is no database
    SqlAlchemyStore(uri, str(artifacts))


def _create(database: Path, artifacts: Path) -> None:
    """Create a store elsewhere and move it here: MLflow refuses one whose tables were interrupted half way."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with TemporaryDirectory(prefix=f".{database.name}-", dir=database.parent) as scratch:
        new = Path(scratch) / database.name
        private_files.open_file(new, "ab").close()  # SQLite gives its other files the same mode
        SqlAlchemyStore(sqlite_uri(new), str(artifacts)).engine.dispose()
        new.replace(database)


def quiet() -> None:
    """Set MLflow's variables that the user has not set, and its logging level, which it reads only at import."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with suppress(ValueError):  # an invalid level is MLflow's to report
        logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
