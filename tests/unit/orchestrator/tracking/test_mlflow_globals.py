"""MLflow's global state belongs to the whole process: threads share it, and it is left as it was."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from orchestrator.tracking import store
from orchestrator.tracking.mlflow_globals import tracking_uri_set, users_env

ADDRESSES = "http://first", "http://second"


@pytest.mark.slow
def test_threads_set_the_address_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://own")
    entered = [Event(), Event()]
    leave = Event()

    def within(number: int) -> str:
        with tracking_uri_set(ADDRESSES[number]):
            entered[number].set()
            leave.wait(60)
            return str(mlflow.get_tracking_uri())

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(within, 0)
        assert entered[0].wait(60)
        second = pool.submit(within, 1)
        assert not entered[1].wait(0.2)
        leave.set()
        assert (first.result(), second.result()) == ADDRESSES
    assert os.environ["MLFLOW_TRACKING_URI"] == mlflow.get_tracking_uri() == "http://own"


def test_variables_of_the_user_are_back_when_the_last_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in store.QUIET:
        monkeypatch.delenv(name, raising=False)
    first, second = users_env(), users_env()
    first.__enter__()
    second.__enter__()
    store.quiet()
    first.__exit__(None, None, None)
    assert store.QUIET.items() <= os.environ.items(), "the other call needs them"
    second.__exit__(None, None, None)
    assert not store.QUIET.keys() & os.environ.keys()
