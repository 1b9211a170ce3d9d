"""The check that a tracking database answers."""

from __future__ import annotations

import threading

import pytest

from orchestrator.cluster import tracking_database
from orchestrator.errors import UNAVAILABLE, UserError
from tests.support.waiting import FOR_EVER


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("postgresql+psycopg2://me:s3cret@127.0.0.1:1/db", "No database answers at .*refused"),
        ("mssql+pymssql://me:s3cret@127.0.0.1/db", "needs the Python module pymssql"),
        ("mssql+nosuch://me:s3cret@127.0.0.1/db", "No database answers at .*Can't load plugin"),
        ("postgresql+psycopg2://me:s3cret@host:port/db", "No database answers at "),
    ],
)
def test_unreachable_database_raises_user_error_without_the_password(uri: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        tracking_database.check(uri)
    assert caught.value.code == UNAVAILABLE
    assert "s3cret" not in str(caught.value)


def test_reachable_database_passes_the_check() -> None:
    tracking_database.check("sqlite://")


def test_silent_database_server_raises_user_error_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlalchemy

    answered = threading.Event()
    monkeypatch.setattr(sqlalchemy, "create_engine", lambda *_, **__: answered.wait(FOR_EVER))
    monkeypatch.setattr(tracking_database, "DATABASE_SECONDS", 0.01)
    try:
        with pytest.raises(UserError, match="nothing within 0"):
            tracking_database.check("postgresql://host/db")
    finally:
        answered.set()
