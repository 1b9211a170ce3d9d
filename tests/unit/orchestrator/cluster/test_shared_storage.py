"""Nodes that do not answer are told from nodes that do not share the storage."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from orchestrator.cluster.shared_storage import check_storage
from orchestrator.errors import UNAVAILABLE, UserError


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
    own = tmp_path / f".nodes-{os.getpid()}"
    own.write_text("of a driver in another container, with the same process id")
    with pytest.raises(UserError, match=words) as caught:
        check_storage(tmp_path, 300)
    own.unlink()
    assert caught.value.code == UNAVAILABLE
    assert not list(tmp_path.iterdir())
