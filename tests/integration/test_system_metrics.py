"""System metrics of a cluster of several nodes: each node tells of itself, and nothing of it stays behind."""

from __future__ import annotations

import time

import pytest
import ray

from orchestrator.engine import Row
from orchestrator.tracking.system_metrics import SystemMetrics
from tests.integration.clusters import logical, named, soon


def test_every_node_tells_of_itself_while_it_is_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = []
    with (
        logical(monkeypatch, [{"num_cpus": 1}, {"num_cpus": 1}]),
        SystemMetrics(rows.extend, began=time.time(), interval=0.1) as system,
    ):
        before = ray.available_resources()["CPU"]
        with system.of_cluster():
            assert soon(lambda: any(len(nodes(row)) == 2 for row in rows))
            assert len(named("Monitors")) == 2
            assert ray.available_resources()["CPU"] == before, "it takes nothing from the trials"
        seen = len(rows)
        assert soon(lambda: len(rows) > seen + 1)
        assert nodes(rows[-1]) == {""}, "the driver's own machine again"
        assert soon(lambda: not named("Monitors"))


def nodes(row: Row) -> set[str]:
    """Whose CPU is among the values."""
    end = "/cpu_utilization_percentage"
    return {name.removesuffix(end).removeprefix("system").lstrip("/") for name in row.metrics if name.endswith(end)}
