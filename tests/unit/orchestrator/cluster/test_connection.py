"""A Ray that does not start is no fault of ours: exit 3, with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from orchestrator.cluster import connection
from orchestrator.errors import UNAVAILABLE, UserError


@pytest.mark.parametrize("error", [Exception, OSError, RuntimeError])
def test_a_cluster_that_does_not_start_is_unavailable(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def init(**settings: Any) -> None:
        raise error("The current node timed out during startup.\nSee the logs")

    stopped: list[bool] = []
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))
    monkeypatch.setattr(connection, "TOKEN", tmp_path / "token")
    with (
        pytest.raises(UserError, match=r"on this machine: The current node timed out") as caught,
        connection.cluster(None),
    ):
        pass
    assert caught.value.code == UNAVAILABLE
    assert stopped, "what had started was left"
