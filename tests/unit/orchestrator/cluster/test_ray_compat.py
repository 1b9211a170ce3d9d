"""Ray's undocumented parts exist and behave as :mod:`orchestrator.cluster.ray_compat` requires."""

from __future__ import annotations

import ast
import pickle
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE
from ray._private.utils import check_version_info
from ray._raylet import raise_sys_exit_with_custom_error_message
from ray.air.execution._internal import RayActorManager
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.tune.execution import tune_controller

from orchestrator.cluster import connection, preflight, ray_compat
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.console import Console
from orchestrator.engine.method_results import exits_as_errors
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.runs import driver
from orchestrator.runs.train import lost_a_process
from orchestrator.storage.settings import resolve
from orchestrator.sweeps.actor_failures import Died
from tests.support.library_internals import MAY_USE, Source, defined

ROOT = Path(__file__).parents[4]
PACKAGES = ("orchestrator", "workloads", "search_spaces", "deploy", "benchmarks", "tests", "examples")
ALLOWED = {
    "orchestrator/cluster/ray_compat.py": "its purpose",
    "tests/unit/orchestrator/cluster/test_ray_compat.py": "tests of it",
    "orchestrator/search/samplers.py": "CMA-ES without a pickle (ReplayedCmaEs)",
    "tests/unit/orchestrator/search/test_study.py": "tests of it",
    "tests/unit/deploy/test_launcher.py": "Ray has no public check of a launcher's file that starts no machine",
    "tests/conftest.py": "MLflow's, not of these libraries",
}
KILLED = OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.")


def test_out_of_memory_error_is_converted_to_a_retried_actor_error(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_torch_trainer_omits_the_placement_group_cleaner() -> None:
    from ray.train.torch import TorchTrainer

    def names(trainer: Any) -> list[str]:
        return [type(each).__name__ for each in trainer(lambda: None)._create_default_callbacks()]

    assert [name for name in names(TorchTrainer) if name not in names(ray_compat.torch_trainer())] == [
        "PlacementGroupCleanerCallback"
    ]


def test_worker_death_is_recognised_in_the_error_of_ray_train() -> None:
    """Train wraps a death in an exception of its own, with Ray's public error in ``health_check_failure``."""
    assert lost_a_process(WorkerGroupError("lost", {1: WorkerHealthCheckFailedError("failed", ActorDiedError())}))


def test_prometheus_reads_the_file_that_ray_writes() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "grafana" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (found,) = job["file_sd_configs"]
    assert found["files"] == [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]


def test_version_mismatch_of_ray_client_is_refused_before_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"ray_version": "2.1.0", "python_version": "3.11.1", "ray_commit": "0"}
    with pytest.raises(RuntimeError) as caught:
        check_version_info(there, "Ray Client", python_version_match_level="minor")
    monkeypatch.setattr(connection, "CLIENT_PROBE", f"raise RuntimeError({str(caught.value)!r})")
    spec = ExperimentSpec(workload="recommender", params=preflight.parameters("recommender", {}), plan=Plan(epochs=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"ray://127.0.0.1:{listening.getsockname()[1]}"
        settings = resolve({"tracking": "none", "storage": str(tmp_path), "ray_address": address})
        words = rf"{address} has other versions .* got Ray 2\.1\.0 on Python 3\.11\.1"
        with pytest.raises(UserError, match=words) as refused:
            driver.run(spec, settings, driver.Options(), Console())
    assert refused.value.code == UNAVAILABLE
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failures", [2, 3])
@pytest.mark.parametrize(
    "error",
    [
        "Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.",
        "psutil.ZombieProcess: PID still exists but it's a zombie (pid=28321)",
    ],
)
def test_ray_client_probe_is_retried_if_its_server_did_not_start(
    error: str, failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors have Ray's exact text; each attempt runs in a process of its own."""
    attempts = tmp_path / "attempts"
    answer = {"ray_version": "2.60.0", "python_version": "3.11.1", "gpus": 2}
    probe = f"""
import json, pathlib
attempts = pathlib.Path({str(attempts)!r})
attempts.open("a").write("x")
if len(attempts.read_text()) <= {failures}:
    raise RuntimeError({error!r})
print(json.dumps({answer}))
"""
    monkeypatch.setattr(connection, "CLIENT_PROBE", probe)
    address = f"ray://{tmp_path}"
    if failures < connection.CLIENT_ATTEMPTS:
        assert connection.metadata(address) == answer
        return
    with pytest.raises(UserError, match=rf"could not start a server .*{re.escape(error)}") as caught:
        connection.metadata(address)
    assert caught.value.code == UNAVAILABLE
    assert len(attempts.read_text()) == connection.CLIENT_ATTEMPTS


def test_ray_compat_module_has_at_most_80_lines() -> None:
    lines = (ROOT / "orchestrator/cluster/ray_compat.py").read_text().splitlines()
    assert len(lines) <= 80


@pytest.mark.slow
def test_private_parts_of_libraries_are_used_only_where_allowed() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    sources = {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}
    own = defined(sources.values())
    found = {
        f"{path}:{node.lineno}": ast.unparse(node)
        for path, source in sources.items()
        if path not in ALLOWED and MAY_USE.search(source)
        for node in Source(ast.parse(source), own).uses()
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import ray\nray._private.state.nodes()",
        "import ray as r\nr._private",
        "import ray.train.v2._internal as internal",
        "from ray import _private",
        "from ray import train\ntrain._internal",
        "from ray.train.v2 import _internal",
        "from optuna.samplers._tpe.sampler import X",
        "def late():\n    from optuna._transform import X",
        "from ray.tune import Tuner\nTuner.fit = None",
        "from ray.tune import Tuner\nTuner.fit: object = None",
        "from ray.tune import Tuner\ndel Tuner.fit",
        "from ray.tune import Tuner\n(Tuner.fit, x) = 1, 2",
        "from ray import tune\nfor tune.Tuner in ():\n    pass",
        "from ray.tune.execution import tune_controller\ntune_controller.Manager, x = 1, 2",
        "from ray import tune\nmine = tune.Tuner\nmine.fit = None",
        "from ray import tune\nsetattr(tune.Tuner, 'fit', None)",
        "from ray import tune\nmonkeypatch.setattr(tune.Tuner, '_fit', None)",
        "monkeypatch.setattr('ray._private.state.nodes', None)",
        "getattr(failure, '_base_exc', None)",
        "import optuna\ngetattr(optuna, '_transform')",
        "study.optuna_study._storage",
        "import optuna\nsampler._group",
        "import optuna\noptuna.create_study()._thread_local",
        "from optuna.samplers import CmaEsSampler\nclass Mine(CmaEsSampler):\n    def _init_optimizer(self): ...",
        "from ray import tune\nclass Mine(tune.Trainable):\n    def step(self):\n        self._iteration += 1",
    ],
)
def test_check_reports_uses_of_private_parts(code: str) -> None:
    assert list(Source(ast.parse(code), {"_storage", "_group"}).uses())


@pytest.mark.parametrize(
    "code",
    [
        "import ray\nray.nodes().x = 1\nray.__version__",
        "import ray\nos._exit(1)\nclass Mine:\n    def f(self):\n        self._x = self._y",
        "from ray import tune\nclass Mine(tune.Trainable):\n    def step(self):\n        self._own = 1",
        "import ray\nmonkeypatch.setattr(ray, 'remote', None)",
        "import torch\ntorch._dynamo.reset()",
    ],
)
def test_check_reports_nothing_for_permitted_code(code: str) -> None:
    assert not list(Source(ast.parse(code), set()).uses())


def test_system_exit_of_ray_is_passed_on_and_others_become_errors() -> None:
    """Ray marks its SystemExit with an attribute that a workload's own sys.exit lacks."""
    with pytest.raises(SystemExit), exits_as_errors():
        raise_sys_exit_with_custom_error_message("The process receives a SIGTERM.", exit_code=1)
    with pytest.raises(RuntimeError, match=r"sys\.exit\(1\)"), exits_as_errors():
        sys.exit(1)
