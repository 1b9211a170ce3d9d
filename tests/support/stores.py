"""Copies of an initialised MLflow store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def copy_store(initialised: Path, home: Path) -> Path:
    """Make ``initialised``, an empty store's file, the embedded store of ``home``. Returns the new file."""
    home.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(initialised)) as connection:
        connection.execute("VACUUM INTO ?", (str(home / "mlflow.db"),))
    (home / "mlflow.ready").touch()
    return home / "mlflow.db"
