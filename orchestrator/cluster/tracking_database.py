"""Check that a database server with MLflow's tables answers."""

from __future__ import annotations

import threading

from orchestrator.errors import UNAVAILABLE, UserError, one_line

DATABASE_SECONDS = 10.0
"""Time limit for a connection. MLflow itself tries again for many minutes."""


def check(uri: str) -> None:
    """Connect to the database once. Raises UserError (exit 3) without its driver, or without an answer in time."""
    errors: list[Exception] = []

    def connect() -> None:
        try:
            from sqlalchemy import create_engine, pool

            create_engine(uri, poolclass=pool.NullPool).connect().close()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(DATABASE_SECONDS)
    if thread.is_alive():
        raise _no_answer(uri, f"nothing within {DATABASE_SECONDS:g} s")
    for error in errors:
        if isinstance(error, ModuleNotFoundError):
            raise UserError(
                f"The database {uri} needs the Python module {error.name}", code=UNAVAILABLE,
                fix="Install it, or name the driver that you have, as in postgresql+psycopg2://",
            ) from None  # fmt: skip
        raise _no_answer(uri, one_line(error)) from None


def _no_answer(uri: str, reason: str) -> UserError:
    return UserError(
        f"No database answers at {uri} ({reason})", code=UNAVAILABLE,
        fix="Start it, correct MLFLOW_TRACKING_URI or --tracking, or unset it for the embedded store",
    )  # fmt: skip
