"""System metrics: MLflow's own names, a sample at the start and one at the end, and no errors."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engine.loop import Row
from orchestrator.tracking import system_metrics
from orchestrator.tracking.system_metrics import Monitors, SystemMetrics
from tests.support.waiting import until


class NvmlError(Exception):
    """Stands for pynvml's NVMLError."""


def refuse(_: Any) -> Any:
    raise NvmlError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML with two devices, which are partly full and busy."""
    nvml = SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=(gpu + 1) * 10e9, total=80e9),
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=50 + gpu),
        nvmlDeviceGetPowerUsage=lambda gpu: 350_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda gpu: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def mlflow_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names that MLflow's own monitors report on this machine."""
    from mlflow.system_metrics.metrics import gpu_monitor
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monkeypatch.setattr(gpu_monitor, "pynvml", sys.modules["pynvml"], raising=False)
    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor(), gpu_monitor.GPUMonitor()]
    for monitor in monitors:
        monitor.collect_metrics()
    return {name for monitor in monitors for name in monitor.aggregate_metrics()}


def test_metric_names_match_those_of_mlflow(two_gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Monitors().sample()
    assert set(found) == mlflow_names(monkeypatch)
    assert (found["gpu_0_memory_usage_percentage"], found["gpu_1_memory_usage_percentage"]) == (12.5, 25.0)
    assert (found["gpu_1_utilization_percentage"], found["gpu_0_power_usage_watts"]) == (51.0, 350.0)
    assert found["gpu_0_power_usage_percentage"] == 50.0
    assert 0 < found["system_memory_usage_percentage"] <= 100


def test_gpu_without_power_readings_reports_its_other_metrics(two_gpus: SimpleNamespace) -> None:
    two_gpus.nvmlDeviceGetPowerUsage = refuse
    found = Monitors().sample()
    assert "gpu_0_utilization_percentage" in found
    assert "gpu_0_power_usage_watts" not in found


def test_other_gpus_keep_their_numbers_when_one_is_lost(two_gpus: SimpleNamespace) -> None:
    two_gpus.nvmlDeviceGetHandleByIndex = lambda number: number or refuse(number)
    found = Monitors().sample()
    assert found["gpu_1_memory_usage_percentage"] == 25.0
    assert not any(name.startswith("gpu_0_") for name in found)


@pytest.mark.parametrize("missing", ["package", "driver"])
def test_metrics_other_than_gpu_are_sampled_without_nvml(
    missing: str, two_gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        two_gpus.nvmlDeviceGetCount = lambda: refuse(None)
    found = Monitors().sample()
    assert "cpu_utilization_percentage" in found
    assert not any(name.startswith("gpu_") for name in found)


def test_shortest_run_has_a_sample_whose_step_counts_from_the_first_start() -> None:
    rows: list[Row] = []
    before = time.time()
    with SystemMetrics(rows.extend, began=before - 100):
        pass
    after = time.time()
    (row,) = rows
    assert 100 <= row.epoch <= after - before + 101, "seconds since the run began"
    assert before <= row.time <= after
    assert "system/cpu_utilization_percentage" in row.metrics


def test_steps_do_not_decrease_when_the_system_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = []
    real = time.time
    system = SystemMetrics(rows.extend, began=real() - 5000)
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    system._sample(Monitors())
    assert rows[0].epoch >= 5000, "MLflow gets no value at or below an earlier step"


def test_samples_come_at_the_interval() -> None:
    rows: list[Row] = []
    with SystemMetrics(rows.extend, began=time.time(), interval=0.01):
        until(lambda: len(rows) >= 3)


@pytest.mark.parametrize(("given", "seconds"), [(None, 60.0), ("5", 5.0), ("0", 60.0), ("often", 60.0)])
def test_the_interval_is_a_minute_or_mlflows_setting(
    given: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(system_metrics.INTERVAL_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(system_metrics.INTERVAL_VARIABLE, given)
    assert SystemMetrics(lambda rows: None, began=0)._interval == seconds


def test_only_cluster_nodes_that_the_run_uses_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = [{"NodeID": str(number), "NodeName": f"node{number}", "Alive": True} for number in range(16)]
    monkeypatch.setattr(system_metrics, "_alive", lambda: alive)
    monkeypatch.setattr(system_metrics, "_start_actors", lambda known, alive, own: {f"node{n}/": n for n in own})
    monkeypatch.setattr(system_metrics, "_collect", lambda nodes: {name: {"cpu": 1.0} for name in nodes})
    rows: list[Row] = []
    own: set[str] = set()
    system = SystemMetrics(rows.extend, began=time.time())
    here = Monitors()
    with system.of_cluster(lambda: own):
        system._sample(here)
        assert rows == [], "the run uses no node yet"
        own = {"3", "7"}
        system._sample(here)
        own = set()
        system._sample(here)
    assert [set(row.metrics) for row in rows] == [{"system/node3/cpu", "system/node7/cpu"}] * 2
    system._sample(here)
    assert "system/cpu_utilization_percentage" in rows[-1].metrics, "the driver's own machine"


def test_failing_monitors_give_no_rows_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("no /proc")

    monkeypatch.setattr(system_metrics, "Monitors", broken)
    rows: list[Row] = []
    with SystemMetrics(rows.extend, began=0):
        pass
    assert rows == []
