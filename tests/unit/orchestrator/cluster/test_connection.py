"""A Ray that does not start is no fault of ours: exit 3, with its reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
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


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"far": "another file is there", "cold": None}, "is not shared by every node: got far: another file"),
        ({"far": "", "cold": None}, r"could not be checked on cold within 300 s\. .* ORCHESTRATOR_START_TIMEOUT"),
    ],
)
def test_a_node_has_its_time_to_start_the_check_of_the_storage(
    answers: dict[str, str | None], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node that is silent is no node that does not see the storage."""
    ids = [f"{number:056}" for number in range(3)]
    names = ("here", *answers)
    nodes = [{"NodeID": ids[n], "NodeManagerHostname": names[n], "Alive": True} for n in range(3)]

    def wait(names: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert (num_returns, timeout) == (2, 300)
        return [name for name in names if answers[name] is not None], []

    asked = iter(answers)
    node_id = SimpleNamespace(get_node_id=lambda: ids[0])
    monkeypatch.setattr(ray, "get_runtime_context", lambda: node_id)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    sent = SimpleNamespace(remote=lambda mark: next(asked))
    monkeypatch.setattr(ray, "remote", lambda look: SimpleNamespace(options=lambda **where: sent))
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", answers.get)
    with pytest.raises(UserError, match=words) as caught:
        connection.check_storage(tmp_path, 300)
    assert caught.value.code == UNAVAILABLE
    assert not list(tmp_path.iterdir())
