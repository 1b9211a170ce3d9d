"""How busy the machines are while a run lasts: MLflow's own system metrics, once a node, through the run's writer.

The names are MLflow's, so that its System metrics tab shows what it always shows; its monitors themselves are not
used, for they would load MLflow on every node. The step is the second since the run's start, so that a resumed run
goes on where it was.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from orchestrator.engine.loop import Row

INTERVAL_SECONDS = 60.0
INTERVAL_VARIABLE = "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"
"""MLflow's own setting of the interval, in seconds."""

ANSWER_SECONDS = 5.0
"""How long a node may take to answer before the others' samples go without its own."""


class Monitors:
    """What one node tells of itself: CPU, memory, disk, network, and NVIDIA GPUs where NVML is there."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the next call measures since this one
        self._sent, self._received = _network()
        self._nvml, self._gpus = _gpus()

    def sample(self) -> dict[str, float]:
        """The values now, by MLflow's names without ``system/``: MB, percent, watts."""
        memory, disk, (sent, received) = psutil.virtual_memory(), psutil.disk_usage(os.sep), _network()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_transmit_megabytes": sent - self._sent,
            "network_receive_megabytes": received - self._received,
        }
        for number, gpu in enumerate(self._gpus):
            for told in (self._gpu_memory, self._gpu_load, self._gpu_power):
                with suppress(self._nvml.NVMLError):  # not every device tells everything
                    values.update({f"gpu_{number}_{name}": value for name, value in told(gpu).items()})
        return {name: round(float(value), 1) for name, value in values.items()}

    def _gpu_memory(self, gpu: Any) -> dict[str, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(gpu)
        return {
            "memory_usage_megabytes": memory.used / 1e6,
            "memory_usage_percentage": 100 * memory.used / memory.total,
        }

    def _gpu_load(self, gpu: Any) -> dict[str, float]:
        return {"utilization_percentage": self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu}

    def _gpu_power(self, gpu: Any) -> dict[str, float]:
        power = self._nvml.nvmlDeviceGetPowerUsage(gpu)  # milliwatts
        limit = self._nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)
        return {"power_usage_watts": power / 1000, "power_usage_percentage": 100 * power / limit}


def _network() -> tuple[float, float]:
    """MB sent and received since the machine started."""
    counted = psutil.net_io_counters()
    return (counted.bytes_sent / 1e6, counted.bytes_recv / 1e6) if counted else (0.0, 0.0)


def _gpus() -> tuple[Any, list[Any]]:
    """NVML and its devices; none without ``nvidia-ml-py``, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None, []


class SystemMetrics:
    """A context manager that samples from its start to its end and hands each sample to ``log`` as a row."""

    def __init__(self, log: Callable[[list[Row]], None], began: float, interval: float | None = None) -> None:
        self._log, self._began, self._interval = log, began, interval or _interval()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._nodes: dict[str, Any] | None = None  # None while no cluster is connected
        self._own_nodes: Callable[[], Collection[str]] = set
        self._asking = threading.Lock()

    def __enter__(self) -> SystemMetrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(ANSWER_SECONDS)

    @contextmanager
    def of_cluster(self, own_nodes: Callable[[], Collection[str]]) -> Iterator[None]:
        """While the body runs, nodes of the connected Ray cluster are sampled, each by name, if it has several.

        ``own_nodes`` returns the ids of the nodes that the run uses now; while it uses none, those that it used last.
        """
        with self._asking:
            self._nodes, self._own_nodes = {}, own_nodes
        try:
            yield
        finally:
            with self._asking:  # whoever leaves the cluster must not be in the middle of a question
                self._nodes = None

    def _run(self) -> None:
        with suppress(Exception):  # a kernel or driver that tells nothing: a run is worth more than this
            here = Monitors()
            wait = min(0.5, self._interval)
            while not self._ended.wait(wait):
                with suppress(Exception):  # a cluster in trouble: the next time, perhaps
                    self._sample(here)
                wait = self._interval
            self._sample(here)

    def _sample(self, here: Monitors) -> None:
        with self._asking:
            if self._nodes is not None and len(alive := _alive()) > 1:
                if own := self._own_nodes():
                    self._nodes = _actors(self._nodes, alive, own)
                found = _ask(self._nodes)
            else:
                found = {"": here.sample()}
        values = {f"system/{node}{name}": value for node, told in found.items() for name, value in told.items()}
        now = time.time()
        if values:
            self._log([Row(max(0, round(now - self._began)), now, values)])


def _interval() -> float:
    """Seconds between two samples: the user's, where they are a number above 0."""
    with suppress(ValueError):
        return max(0.0, float(os.environ.get(INTERVAL_VARIABLE, ""))) or INTERVAL_SECONDS
    return INTERVAL_SECONDS


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _actors(known: Mapping[str, Any], alive: list[dict[str, Any]], own: Collection[str]) -> dict[str, Any]:
    """One small actor for each node of ``alive`` whose id is in ``own``, by ``<node>/``."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(Monitors)
    names = [node["NodeName"] for node in alive]
    found = {}
    for node in alive:
        if node["NodeID"] not in own:
            continue
        name, place = node["NodeName"], NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        label = f"{name}-{node['NodeID'][:6]}/" if names.count(name) > 1 else f"{name}/"
        found[label] = known.get(label) or actor.options(scheduling_strategy=place).remote()
    return found


def _ask(nodes: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The samples of the nodes that answer in time; one that is gone or busy is left out."""
    import ray

    if not nodes:
        return {}
    questions = {name: actor.sample.remote() for name, actor in nodes.items()}
    done, _ = ray.wait(list(questions.values()), num_returns=len(questions), timeout=ANSWER_SECONDS)
    found = {}
    for name, question in questions.items():
        if question in done:
            with suppress(ray.exceptions.RayError):
                found[name] = ray.get(question)
    return found
