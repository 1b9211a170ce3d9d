"""What Ray does not document is there and does what :mod:`orchestrator.cluster.ray_compat` says, on every version."""

from __future__ import annotations

import ast
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE
from ray.air.execution._internal import RayActorManager
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.tune.execution import tune_controller

from orchestrator.cluster import ray_compat
from orchestrator.runs.train import lost_a_process
from orchestrator.sweeps.actor_failures import Died

ROOT = Path(__file__).parents[4]
PACKAGES = ("orchestrator", "workloads", "search_spaces", "deploy", "benchmarks", "tests")
ALLOWED = {"orchestrator/cluster/ray_compat.py", "tests/unit/orchestrator/cluster/test_ray_compat.py"}
LIBRARIES = ("ray", "optuna", "tune", "train", "tune_controller")
KILLED = OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.")


def test_tune_takes_every_death_of_a_process_for_an_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", lambda self, task, error: seen.append(error))
    usual = tune_controller.RayActorManager
    with ray_compat.deaths_are_retried(Died):
        manager = tune_controller.RayActorManager.__new__(tune_controller.RayActorManager)
        for error in (KILLED, ActorDiedError(), RayTaskError("step", "trace", ValueError("bad")), ValueError("ours")):
            manager._actor_task_failed(None, error)
    assert tune_controller.RayActorManager is usual
    assert [type(error) for error in seen] == [Died, ActorDiedError, RayTaskError, ValueError]
    assert isinstance(seen[0], RayActorError)
    assert str(pickle.loads(pickle.dumps(seen[0]))).startswith("out of memory")


def test_the_trainer_starts_no_cleaner() -> None:
    from ray.train.torch import TorchTrainer

    def names(trainer: Any) -> list[str]:
        return [type(each).__name__ for each in trainer(lambda: None)._create_default_callbacks()]

    assert [name for name in names(TorchTrainer) if name not in names(ray_compat.torch_trainer())] == [
        "PlacementGroupCleanerCallback"
    ]


def test_a_workers_death_is_told_from_its_error() -> None:
    """Train wraps a death in an exception of its own, with Ray's public error in ``health_check_failure``."""
    assert lost_a_process(WorkerGroupError("lost", {1: WorkerHealthCheckFailedError("failed", ActorDiedError())}))


def test_prometheus_reads_the_file_that_ray_writes() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "grafana" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (found,) = job["file_sd_configs"]
    assert found["files"] == [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]


def test_the_module_is_short() -> None:
    lines = (ROOT / "orchestrator/cluster/ray_compat.py").read_text().splitlines()
    assert len(lines) <= 80


def test_nothing_else_touches_the_libraries_own_parts() -> None:
    """Attributes whose names begin with an underscore, and assignments; imports are ruff's (TID251)."""
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and is_private(node))
        or any(root(target) in LIBRARIES for target in assigned(node))
    ]
    assert found == []


def test_the_check_sees_what_it_forbids() -> None:
    tree = ast.parse("ray._private.state.nodes()\ntune_controller.Manager, x = 1, 2\nray.nodes()\n")
    nodes = list(ast.walk(tree))
    assert [ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute) and is_private(n)] == ["ray._private"]
    assert [ast.unparse(t) for n in nodes for t in assigned(n) if root(t) in LIBRARIES] == ["tune_controller.Manager"]


@cache
def sources() -> list[tuple[str, ast.Module]]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    named = [(file.relative_to(ROOT).as_posix(), file) for file in files]
    return [(name, ast.parse(file.read_text())) for name, file in named if name not in ALLOWED]


def is_private(node: ast.Attribute) -> bool:
    return node.attr.startswith("_") and not node.attr.startswith("__") and root(node) in LIBRARIES


def root(node: ast.AST) -> str | None:
    """The name that a chain of attributes begins with; None for any other expression and for a bare name."""
    if not isinstance(node, ast.Attribute):
        return None
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def assigned(node: ast.AST) -> list[ast.AST]:
    """What a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
