"""A real cluster of logical nodes: the number of trials placed at once, and system metrics of nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster import connection
from orchestrator.cluster.ray_compat import nodes_of_job
from orchestrator.cluster.train_group import bundle
from orchestrator.config.spec import Resources
from orchestrator.engine.loop import Row
from orchestrator.tracking.system_metrics import SystemMetrics
from tests.support.clusters import groups, logical, named, soon
from tests.support.waiting import HANG_SECONDS

NODES = [{"num_cpus": 4, "num_gpus": 2}, {"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 3, "num_gpus": 0}]


@pytest.fixture(scope="module")
def unequal() -> Iterator[str]:
    """The GPUs are only declared; scheduling needs no more."""
    with pytest.MonkeyPatch.context() as monkeypatch, logical(monkeypatch, NODES) as address:
        yield address


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"cpus_per_worker": 2}, 4),  # nine CPUs, but only four pairs within a node
        ({"cpus_per_worker": 2, "workers": 2}, 2),
        ({"cpus_per_worker": 1.5, "workers": 3}, 1),
        ({"gpus_per_worker": 1, "workers": 2}, 1),  # one GPU remains on each of two nodes
        ({"gpus_per_worker": 2}, 1),
        ({"gpus_per_worker": 2, "workers": 2}, 0),
        ({"gpus_per_worker": 0.4, "cpus_per_worker": 0.5}, 6),  # two per device: 2 GPUs do not fit five times 0.4
        ({"gpus_per_worker": 1 / 3, "cpus_per_worker": 0.5}, 9),
        ({"gpus_per_worker": 0.25, "cpus_per_worker": 1}, 6),  # limited by the CPUs of the nodes with GPUs
    ],
    ids=str,
)
def test_planned_slots_equal_the_placement_groups_that_ray_creates(
    asked: dict[str, float], expected: int, unequal: str
) -> None:
    resources = Resources(**asked)
    assert connection.slots(connection.nodes(), resources) == expected
    placed = [placement_group([bundle(resources)] * resources.workers) for _ in range(expected + 2)]
    try:
        assert soon(lambda: _ready() >= expected), f"only {_ready()} were placed"
        time.sleep(0.5)  # time in which one too many could be placed
        assert _ready() == expected
    finally:
        _remove(placed)


def test_fractional_gpus_share_a_device_up_to_its_capacity(unequal: str) -> None:
    resources = Resources(gpus_per_worker=0.4, cpus_per_worker=0.5)
    placed = [placement_group([bundle(resources)]) for _ in range(connection.slots(connection.nodes(), resources))]
    try:
        devices = Counter(ray.get([_device(group) for group in placed], timeout=HANG_SECONDS))
        assert sorted(devices.values()) == [2, 2, 2]
    finally:
        _remove(placed)


@pytest.mark.slow
def test_the_nodes_that_a_run_uses_report_their_system_metrics(unequal: str) -> None:
    rows: list[Row] = []
    with SystemMetrics(rows.extend, began=time.time(), interval=0.1) as system:
        before = ray.cluster_resources()["CPU"]
        assert soon(lambda: ray.available_resources().get("CPU") == before), "the last test's CPUs are still held"
        trial = ray.remote(num_cpus=1, num_gpus=1)(_Trial).remote()
        own = ray.get(trial.node.remote())
        with system.of_cluster(nodes_of_job):
            assert soon(lambda: any(_measured(row) != {""} for row in rows))
            assert nodes_of_job() == {own}
            assert len(named("Monitors")) == 1, "only one of three nodes is monitored"
            assert ray.available_resources()["CPU"] == before - 1, "the monitor must not use the trials' CPUs"
            (name,) = _measured(rows[-1])
            assert name.split("/")[0].startswith(next(n["NodeName"] for n in ray.nodes() if n["NodeID"] == own))
            ray.kill(trial)
            assert soon(lambda: not nodes_of_job())
            seen = len(rows)
            assert soon(lambda: len(rows) > seen + 1)
            assert _measured(rows[-1]) == {name}, "the last used node"
        seen = len(rows)
        assert soon(lambda: len(rows) > seen + 1)
        assert _measured(rows[-1]) == {""}, "only the driver's machine"
        assert soon(lambda: not named("Monitors"))


class _Trial:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def _measured(row: Row) -> set[str]:
    """The nodes whose CPU utilization is among the values; "" is the driver's."""
    end = "/cpu_utilization_percentage"
    return {name.removesuffix(end).removeprefix("system").lstrip("/") for name in row.metrics if name.endswith(end)}


def _ready() -> int:
    return sum(group["state"] == "CREATED" for group in groups())


def _remove(placed: list[PlacementGroup]) -> None:
    for group in placed:
        remove_placement_group(group)
    assert soon(lambda: not groups())


def _device(group: PlacementGroup) -> ray.ObjectRef:
    @ray.remote(num_cpus=0.5, num_gpus=0.4)
    def device() -> tuple[str, str]:
        return ray.get_runtime_context().get_node_id(), ray.get_runtime_context().get_accelerator_ids()["GPU"][0]

    return device.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0)).remote()
