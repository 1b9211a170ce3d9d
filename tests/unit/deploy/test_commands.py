"""Commands in `deploy/` are valid for Ray or orchestrator, and every example sweep fits its cluster."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ray.scripts import scripts as ray_commands

from orchestrator.cli.app import app
from orchestrator.cluster import connection, preflight
from orchestrator.config.spec import Resources, SweepSpec
from orchestrator.errors import UserError
from orchestrator.jobs import durable
from orchestrator.storage.records import NAME
from orchestrator.sweeps import sweep
from tests.unit.deploy.manifests import BUILDS, DEPLOY, README, SERVICES, build, containers, one, ray_clusters
from tests.unit.deploy.test_slurm import ray_start as slurm_ray_start


def ray_starts() -> Iterator[list[str]]:
    """The arguments of every `ray start`, including KubeRay's parameters and those of Slurm's nodes."""
    for service in SERVICES.values():
        if service.get("command", ())[:2] == ["ray", "start"]:
            yield service["command"][2:]
    for name in ("cluster.yaml", "cluster-aws.yaml"):
        config = yaml.safe_load((DEPLOY / name).read_text())
        for command in [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]:
            if "ray start" in command:
                yield shlex.split(command.partition("ray start")[2])
    for name in BUILDS:
        for spec in ray_clusters(name):
            for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
                yield [f"--{key}={value}" for key, value in group["rayStartParams"].items()]
    with tempfile.TemporaryDirectory() as folder:
        for node in ("0", "1"):
            yield slurm_ray_start(Path(folder), SLURM_NODEID=node, SLURM_MEM_PER_NODE="8000")


def shapes() -> dict[str, list[connection.Node]]:
    """The nodes of each example cluster in the form that a sweep uses: CPUs and GPUs, the head first."""
    found = {}
    for name in BUILDS:
        for spec in ray_clusters(name):
            assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
            nodes = [{"CPU": 0.0, "GPU": 0.0}]
            for group in spec["workerGroupSpecs"]:
                (container,) = group["template"]["spec"]["containers"]
                limits = container["resources"]["limits"]
                node = {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}
                nodes += [node] * group["replicas"]
            found[name] = nodes
    kinds = yaml.safe_load((DEPLOY / "cluster-aws.yaml").read_text())["available_node_types"]
    gpu = {kind: float(amount) for kind, amount in kinds["gpu"]["resources"].items()}
    found["aws"] = [{"CPU": 0.0, "GPU": 0.0}, *[gpu] * kinds["gpu"]["min_workers"]]
    return found


def asked(words: list[str], nodes: list[connection.Node], monkeypatch: pytest.MonkeyPatch) -> SweepSpec:
    """The sweep of a command line on a cluster of these nodes; nothing is started."""
    caught = []

    def instead(spec: SweepSpec, *_: Any) -> None:
        caught.append(spec)
        raise typer.Exit(0)

    monkeypatch.setattr(sweep, "sweep", instead)
    monkeypatch.setattr(preflight, "cluster_gpus", lambda _: sum(node["GPU"] for node in nodes))
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    app(words, standalone_mode=False)
    (spec,) = caught
    return spec


def entrypoint(name: str) -> tuple[str, list[str]]:
    """The name of a RayJob's sweep, and the arguments of its orchestrator command."""
    python, option, module, run, *words = shlex.split(one(name, "RayJob")["spec"]["entrypoint"])
    assert (python, option, module) == ("python", "-m", durable.__name__)
    return run, words


RAY_STARTS = list(map(tuple, ray_starts()))


@pytest.mark.parametrize("words", RAY_STARTS, ids=range(len(RAY_STARTS)))  # the ports of Slurm's nodes are random
def test_options_of_every_ray_start_command_are_valid(words: tuple[str, ...]) -> None:
    ray_commands.start.make_context("ray start", list(words))


def test_metrics_ports_match_the_grafana_readme() -> None:
    text = " ".join((DEPLOY / "grafana" / "README.md").read_text().split())
    assert "In `deploy/` the port is 8080, except under Slurm, where Ray chooses it." in text
    given = [[word for word in words if word.startswith("--metrics-export-port")] for words in RAY_STARTS]
    assert [] not in given[:6], "compose, cluster.yaml, cluster-aws.yaml"
    assert given[-2:] == [[], []], "Slurm"
    assert {word for words in given for word in words} == {"--metrics-export-port=8080"}
    for name in BUILDS:
        for container in containers(build(name)):
            ports = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
            assert ports.get("metrics", 8080) == 8080


@pytest.mark.parametrize("name", [name for name in BUILDS if name.endswith("sweep")])
def test_entrypoint_of_a_sweep_is_valid_and_uses_its_whole_cluster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, words = entrypoint(name)
    assert NAME.fullmatch(run)
    assert "--name" not in words, "orchestrator.jobs.durable adds it"
    nodes = shapes()[name]
    at_once = connection.check_fit(nodes, asked(words, nodes, monkeypatch).resources)
    device = "CPU" if "cpu" in name else "GPU"
    assert at_once == sum(node[device] for node in nodes), "all devices must be used"


def test_resources_that_exceed_the_cluster_are_refused() -> None:
    nodes = shapes()
    assert connection.check_fit(nodes["overlays/team/sweep"], Resources(workers=4, gpus_per_worker=1)) == 1
    with pytest.raises(UserError, match="too small"):
        connection.check_fit(nodes["overlays/team/sweep"], Resources(workers=5, gpus_per_worker=1))
    with pytest.raises(UserError, match="too small"):
        connection.check_fit(nodes["overlays/single-gpu"], Resources(cpus_per_worker=5))


def test_every_cluster_keeps_at_least_one_worker() -> None:
    """A sweep is sized by the existing nodes and refused if there are none."""
    for name, nodes in shapes().items():
        on_cpus = "cpu" in name or name.endswith("serve")
        assert connection.check_fit(nodes, Resources(gpus_per_worker=not on_cpus)) >= 1, name
    for name in BUILDS:
        for spec in ray_clusters(name):
            for group in spec["workerGroupSpecs"]:
                assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


COMMANDS = [line.strip() for line in README.splitlines() if line.strip().startswith("orchestrator ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_readme_are_valid(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    _parse(words)
    if words[0] == "submit":
        _parse(words[words.index("--") + 1 :])


@pytest.mark.parametrize("line", [line for line in COMMANDS if "-- sweep " in line])
def test_sweeps_of_the_readme_fit_every_cluster(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line, comments=True)[shlex.split(line).index("--") + 1 :]
    specs: dict[float, SweepSpec] = {}
    for name, nodes in shapes().items():
        gpus = sum(node["GPU"] for node in nodes)  # a sweep's resources depend only on the cluster's GPUs
        if gpus not in specs:
            specs[gpus] = asked(words, nodes, monkeypatch)
        assert connection.check_fit(nodes, specs[gpus].resources) >= 1, name


def _parse(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))
