"""MLflow's system metrics (CPU, memory, disk, network, GPU) of each node, logged while a run lasts.

The names are MLflow's, for its System metrics tab. Its own monitors are not used: they would import MLflow on every
node. The step is the number of seconds since the run's start, so a resumed run continues its curves.
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
"""How long to wait for a node's sample; a slower node is left out."""


class Monitors:
    """Samples one node: CPU, memory, disk, network, and NVIDIA GPUs if NVML is installed."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the next call measures from here
        self._sent, self._received = _network()
        self._nvml, self._gpus = _gpus()

    def sample(self) -> dict[str, float]:
        """Current values by MLflow's names without ``system/``, in MB, percent and watts."""
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(os.sep)
        sent, received = _network()
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
        for number, gpu in self._gpus.items():
            for read in (self._gpu_memory, self._gpu_load, self._gpu_power):
                with suppress(self._nvml.NVMLError):  # not every device has every value
                    values.update({f"gpu_{number}_{name}": value for name, value in read(gpu).items()})
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


def _gpus() -> tuple[Any, dict[int, Any]]:
    """NVML and its devices by number, except lost ones; none without ``nvidia-ml-py``, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None, {}
    gpus = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):
                gpus[number] = pynvml.nvmlDeviceGetHandleByIndex(number)
    return pynvml, gpus


class SystemMetrics:
    """Context manager that samples in a thread and passes each sample to ``log`` as a row."""

    def __init__(self, log: Callable[[list[Row]], None], began: float, interval: float | None = None) -> None:
        self._log = log
        self._began = began - time.time() + time.monotonic()  # the clock may be set, and steps must grow
        self._interval = interval or _interval()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._actors: dict[str, Any] | None = None  # None while no cluster is connected
        self._own_nodes: Callable[[], Collection[str]] = set
        self._sampling = threading.Lock()

    def __enter__(self) -> SystemMetrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(ANSWER_SECONDS)

    @contextmanager
    def of_cluster(self, own_nodes: Callable[[], Collection[str]]) -> Iterator[None]:
        """Sample the nodes of the connected Ray cluster in the body, each under its name, if the cluster has several.

        ``own_nodes`` returns the ids of the nodes in use by the run. While there are none, the last ones are sampled.
        """
        with self._sampling:
            self._actors = {}
            self._own_nodes = own_nodes
        try:
            yield
        finally:
            with self._sampling:  # no request may be under way when the process leaves the cluster
                self._actors = None

    def _run(self) -> None:
        with suppress(Exception):  # a kernel or driver without these values must not fail the run
            here = Monitors()
            wait = min(0.5, self._interval)
            while not self._ended.wait(wait):
                with suppress(Exception):  # a problem of the cluster may be over at the next sample
                    self._sample(here)
                wait = self._interval
            self._sample(here)

    def _sample(self, here: Monitors) -> None:
        with self._sampling:
            if self._actors is not None and len(alive := _alive()) > 1:
                if own := self._own_nodes():
                    self._actors = _start_actors(self._actors, alive, own)
                samples = _collect(self._actors)
            else:
                samples = {"": here.sample()}
        values = {f"system/{node}{name}": value for node, sample in samples.items() for name, value in sample.items()}
        if values:
            self._log([Row(max(0, round(time.monotonic() - self._began)), time.time(), values)])


def _interval() -> float:
    """Seconds between two samples: the user's setting if it is a number above 0, else the default."""
    with suppress(ValueError):
        return max(0.0, float(os.environ.get(INTERVAL_VARIABLE, ""))) or INTERVAL_SECONDS
    return INTERVAL_SECONDS


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _start_actors(running: Mapping[str, Any], alive: list[dict[str, Any]], own: Collection[str]) -> dict[str, Any]:
    """One actor for each node of ``alive`` whose id is in ``own``, by ``<node>/``; those ``running`` are reused."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(Monitors)
    names = [node["NodeName"] for node in alive]
    actors = {}
    for node in alive:
        if node["NodeID"] not in own:
            continue
        name = node["NodeName"]
        affinity = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        label = f"{name}-{node['NodeID'][:6]}/" if names.count(name) > 1 else f"{name}/"
        actors[label] = running.get(label) or actor.options(scheduling_strategy=affinity).remote()
    return actors


def _collect(actors: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The samples of the nodes that answer in time."""
    import ray

    if not actors:
        return {}
    requests = {name: actor.sample.remote() for name, actor in actors.items()}
    done, _ = ray.wait(list(requests.values()), num_returns=len(requests), timeout=ANSWER_SECONDS)
    samples = {}
    for name, request in requests.items():
        if request in done:
            with suppress(ray.exceptions.RayError):
                samples[name] = ray.get(request)
    return samples
