"""The SQLite store."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.registry import models as registry
from orchestrator.storage.settings import resolve, sqlite_file
from orchestrator.tracking import store


def test_tracking_file_that_is_not_a_database_raises_user_error(tmp_path: Path) -> None:
    file = tmp_path / "garbage.db"
    file.write_bytes(b"no database " * 400)
    with pytest.raises(UserError, match=r"garbage\.db cannot be used: got file is not a database\. Name") as caught:
        registry.client(resolve({"tracking": f"sqlite:///{file}"}))
    assert (caught.value.code, file.read_bytes()) == (UNAVAILABLE, b"no database " * 400)
    assert not file.with_suffix(".ready").exists()


def test_a_store_whose_creation_was_interrupted_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite commits each table of a migration at once, so a restarted MLflow finds a table that it tries to create."""
    begun: list[str] = []

    def create(uri: str, _: str) -> SimpleNamespace:
        begun.append(uri)
        with closing(sqlite3.connect(str(sqlite_file(uri)))) as connection:
            connection.execute("CREATE TABLE scheduler_leases (id)")
        if len(begun) == 1:
            raise KeyboardInterrupt
        return SimpleNamespace(engine=SimpleNamespace(dispose=lambda: None))

    monkeypatch.setitem(sys.modules, "mlflow.store.tracking.sqlalchemy_store", SimpleNamespace(SqlAlchemyStore=create))
    file = tmp_path / "mlflow.db"
    with pytest.raises(KeyboardInterrupt):
        store.ensure(f"sqlite:///{file}", tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mlflow.lock"]
    store.ensure(f"sqlite:///{file}", tmp_path)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("scheduler_leases",)]
