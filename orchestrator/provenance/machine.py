"""The hardware of a run: this machine, and the Ray cluster that this process is connected to."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from workloads.cpus import usable_cpus

GIB = 2**30

_CPU = Path("/proc/cpuinfo")


def describe() -> dict[str, Any]:
    """This machine: ``cpu`` and ``gpus`` by model name, ``cpus`` usable here, ``memory_gib``."""
    import psutil

    return {
        "cpu": _field(_CPU, "model name") or platform.processor() or platform.machine(),
        "cpus": usable_cpus(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "gpus": sorted(
            _field(file, "Model") or "unknown" for file in Path("/proc/driver/nvidia/gpus").glob("*/information")
        ),
    }


def has_bf16_instructions() -> bool:
    """Whether the CPU has instructions for bf16; without them its matrix products are slow. True if it is unknown."""
    flags = _field(_CPU, "flags") or _field(_CPU, "Features")  # x86, ARM
    return flags is None or not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(flags.split())


def cluster() -> dict[str, Any] | None:
    """Ray's version and each live node's ``CPU``, ``GPU``, ``memory_gib`` and ``gpus``; None without a connection."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return {"ray": ray.__version__, "nodes": sorted((_node(node) for node in nodes), key=str)}


def shape(cluster: dict[str, Any]) -> str:
    """A cluster as text: ``2 x 8 CPU, 1 GPU H100; 1 x 4 CPU``."""
    words = []
    for node in cluster["nodes"]:
        gpus = f", {node['GPU']:g} GPU {' '.join(node['gpus'])}".rstrip() if node["GPU"] else ""
        words.append(f"{node['CPU']:g} CPU{gpus}")
    return "; ".join(f"{words.count(word)} x {word}" for word in dict.fromkeys(words))


def _node(resources: dict[str, float]) -> dict[str, Any]:
    kinds = (name.removeprefix("accelerator_type:") for name in resources if name.startswith("accelerator_type:"))
    return {
        "CPU": resources.get("CPU", 0.0),
        "GPU": resources.get("GPU", 0.0),
        "memory_gib": round(resources.get("memory", 0.0) / GIB, 1),
        "gpus": sorted(kinds),
    }


def _field(file: Path, name: str) -> str | None:
    """The first ``name : value`` in a file of the kernel."""
    try:
        with file.open() as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
    except OSError:
        return None
