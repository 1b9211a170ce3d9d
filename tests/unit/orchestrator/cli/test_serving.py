"""Start and end of ``orchestrator serve``, with the calls of Ray Serve replaced."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray

from orchestrator.cli import serving
from orchestrator.cluster import connection
from orchestrator.errors import DONE, FAILED, INTERRUPTED, UNAVAILABLE, USAGE
from orchestrator.registry import versions
from tests.support.commands import typed
from tests.support.ports import free_port

Call = Callable[..., Any]


@pytest.fixture
def ray_serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray Serve on a cluster with two CPUs, whose replicas start at once."""

    @contextmanager
    def cluster(address: str | None) -> Iterator[list[dict[str, float]]]:
        yield [{"CPU": 2.0, "GPU": 0.0}]

    fake: Any = ModuleType("ray.serve")
    fake.status = Mock(return_value=SimpleNamespace(applications={}))
    fake.start, fake.run, fake.end = Mock(), Mock(), Mock()
    fake.delete, fake.shutdown = fake.end.delete, fake.end.shutdown
    application: Any = ModuleType("orchestrator.registry.serve")
    application.build = Mock()
    monkeypatch.setattr(ray, "serve", fake, raising=False)
    monkeypatch.setitem(sys.modules, "ray.serve", fake)
    monkeypatch.setitem(sys.modules, "orchestrator.registry.serve", application)
    monkeypatch.setattr(connection, "cluster", cluster)
    monkeypatch.setattr(serving, "NEEDED", ())
    monkeypatch.setattr(versions, "find", Mock(return_value=SimpleNamespace(name="rec/1")))
    monkeypatch.setenv(*serving.READY)
    return fake


def serve(home: Path, *words: str) -> Any:
    return typed(home, "serve", "rec@champion", "--port", str(free_port()), *words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_serving_before_and_after_the_replicas_started(
    ray_serve: Any, home: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_serve.run = Mock(side_effect=lambda *words, **options: os.kill(os.getpid(), number))
    assert serve(home).returncode == INTERRUPTED
    ray_serve.run = Mock()
    waits = SimpleNamespace(wait=lambda: os.kill(os.getpid(), number))
    monkeypatch.setattr(serving.threading, "Event", lambda: waits)
    done = serve(home)
    assert done.returncode == DONE
    assert done.stdout.startswith("rec/1 (rec@champion): http://127.0.0.1:")
    assert [call[0] for call in ray_serve.end.mock_calls] == ["shutdown", "delete", "shutdown"]


def test_the_error_of_a_replica_is_reported(ray_serve: Any, home: Path) -> None:
    message = "The deployment failed to start 3 times in a row. Error:\nTraceback\n  line\nRuntimeError: no weights\n"
    failed = SimpleNamespace(deployments={"model": SimpleNamespace(message=message)})
    ray_serve.status.side_effect = [
        SimpleNamespace(applications={}), SimpleNamespace(applications={serving.APPLICATION: failed}),
    ]  # fmt: skip
    ray_serve.run = Mock(side_effect=RuntimeError("Failed to update the deployments ['model']"))
    done = serve(home)
    assert (done.returncode, done.stderr) == (FAILED, "failed: Serving rec/1 failed: RuntimeError: no weights\n")


def test_serving_without_cpus_or_over_another_application_is_refused(ray_serve: Any, home: Path) -> None:
    done = serve(home, "--replicas", "3")
    assert done.returncode == UNAVAILABLE
    assert "There are too few CPUs for 3 replicas, each of which needs one: got 2." in done.stderr
    ray_serve.status.return_value = SimpleNamespace(applications={"orchestrator": None})
    done = serve(home)
    assert done.returncode == UNAVAILABLE
    assert "The cluster serves an application already, which this one would replace: got orchestrator." in done.stderr
    ray_serve.shutdown.assert_not_called()
    done = serve(home, "--port", "70000")
    assert (done.returncode, done.stdout) == (USAGE, "")
