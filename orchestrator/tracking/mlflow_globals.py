"""Context managers for MLflow's global state: tracking address and environment variables."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from orchestrator.storage.settings import preserve_env
from orchestrator.tracking import store

PICKLES = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
"""Whether MLflow loads pickled models. Our models are logged from code, so the default is no."""

TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
FILE_SECONDS = "300"
"""Time limit of an answer about files, unless the user has set one. A server answers a large one once its whole content
is in its bucket, or here."""

_held = threading.RLock()
"""Held while the addresses are set: they belong to the whole process, in which several threads may run experiments."""

_CHANGED = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", PICKLES, TIMEOUT)


@contextmanager
def tracking_uri_set(uri: str | None) -> Iterator[None]:
    """Set MLflow's tracking and registry address to ``uri`` (None: MLflow's default) and refuse pickled models.

    Files may take longer than other requests. MLflow also keeps the address in the environment, which subprocesses
    inherit; the earlier variables are restored. Another thread waits.
    """
    import mlflow

    with _held, preserve_env(*_CHANGED):
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        os.environ.setdefault(PICKLES, "false")
        if os.environ.get(TIMEOUT) == store.QUIET[TIMEOUT]:
            os.environ[TIMEOUT] = FILE_SECONDS
        try:
            yield
        finally:
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)


_counting = threading.Lock()
_calls = 0
_restored = ExitStack()


@contextmanager
def users_env() -> Iterator[None]:
    """Restore on exit the variables that :func:`store.quiet` sets, of several threads when the last one leaves.

    They are for our calls alone: without retries, and after 10 s, those of a notebook's own would fail.
    """
    global _calls
    with _counting:
        if not _calls:
            _restored.enter_context(preserve_env(*store.QUIET))
        _calls += 1
    try:
        yield
    finally:
        with _counting:
            _calls -= 1
            if not _calls:
                _restored.close()
