"""The check that the nodes of a cluster share the storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator.cluster.shared_storage import check_search, check_storage
from orchestrator.config.spec import Search
from orchestrator.errors import UNAVAILABLE, UserError


def cluster(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Any], lost: str | None = None) -> None:
    """A cluster of this node and those of ``answers``; Ray reports ``lost`` as dead after the nodes are asked."""
    ids = [f"{number:056}" for number in range(1 + len(answers))]
    names = ("here", *answers)
    dead: set[str | None] = set()

    def nodes() -> list[dict[str, Any]]:
        return [{"NodeID": i, "NodeManagerHostname": name, "Alive": name not in dead} for i, name in zip(ids, names)]

    def wait(checks: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert (num_returns, timeout) == (2, 300)
        dead.add(lost)
        return [name for name in checks if answers[name] is not None], []

    def get(name: str) -> Any:
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    asked = iter(answers)
    sent = SimpleNamespace(remote=lambda mark: next(asked))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: ids[0]))
    monkeypatch.setattr(ray, "nodes", nodes)
    monkeypatch.setattr(ray, "remote", lambda look: SimpleNamespace(options=lambda **where: sent))
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"far": "another file is there", "cold": None}, "is not shared by every node: got far: another file"),
        ({"far": "", "cold": None}, r"could not be checked on cold within 300 s\. .* ORCHESTRATOR_START_TIMEOUT"),
        ({"far": ray.exceptions.WorkerCrashedError(), "cold": ""}, "by every node: got far: The worker died"),
    ],
)
def test_storage_not_shared_or_not_checked_by_a_node_is_refused(
    answers: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node that does not answer is reported differently from a node that does not see the storage."""
    cluster(monkeypatch, answers)
    own = tmp_path / f".nodes-{os.getpid()}"
    own.write_text("of a driver in another container, with the same process id")
    with pytest.raises(UserError, match=words) as caught:
        check_storage(tmp_path, 300)
    own.unlink()
    assert caught.value.code == UNAVAILABLE
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", [ray.exceptions.TaskUnschedulableError("no such node"), None], ids=str)
def test_lost_node_is_excluded_from_the_storage_check(
    answer: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray lists a node that was killed seconds ago as alive; a check on this node fails when Ray notices its death."""
    cluster(monkeypatch, {"far": answer, "cold": ""}, lost="far")
    check_storage(tmp_path, 300)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"scheduler": "pbt"}, "--scheduler pbt"),
        ({"ordered": True, "scheduler": "median"}, "--ordered"),
        ({"trial_timeout": 60.0}, "--trial-timeout"),
    ],
)
def test_options_that_read_folders_of_trials_need_a_folder_that_all_nodes_share(
    given: dict[str, Any], option: str
) -> None:
    search = Search(space="space", trials=4, **given)
    check_search(search, "s3://runs/x", 1)
    check_search(search, None, 2)
    check_search(Search(space="space", trials=4), "s3://runs/x", 2)
    with pytest.raises(UserError, match=f"{option} reads the trials' folders .* 2 nodes and s3://runs/x") as error:
        check_search(search, "s3://runs/x", 2)
    assert error.value.code == UNAVAILABLE
