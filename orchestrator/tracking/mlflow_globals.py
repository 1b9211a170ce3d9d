"""MLflow's fluent API on one store, for as long as a call needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PICKLES = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
"""Whether MLflow loads a model that is a pickle: ours are logged from code, so that not unless the user says so."""

_INHERITED = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", PICKLES)


@contextmanager
def tracking_uri_set(uri: str | None) -> Iterator[None]:
    """Tracking and registry at ``uri``, None is MLflow's own choice; no model that is a pickle is loaded.

    MLflow keeps both in the environment too, where a notebook's next subprocess would inherit them: what stood there
    before is put back.
    """
    import mlflow

    with preserve_env(*_INHERITED):
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        os.environ.setdefault(PICKLES, "false")
        try:
            yield
        finally:
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)


@contextmanager
def preserve_env(*names: str) -> Iterator[None]:
    """Put variables of the environment back in the end, or away, as they stood."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
