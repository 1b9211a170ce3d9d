"""The options of ``sbatch`` that a run or sweep needs (``orchestrator plan --slurm``, ``deploy/slurm``)."""

from __future__ import annotations

import math

from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, SweepSpec

CPU_PROCESSES = 8
"""Trials at once of a sweep on CPUs, unless --concurrency says otherwise."""

ENDING_SECONDS = 900
"""Added to a time budget: the nodes start, the winner is refitted and logged."""


def header(
    spec: ExperimentSpec | SweepSpec,
    gpus_per_node: int,
    wall_seconds: float | None = None,
    refit_seconds: float = 0.0,
) -> str:
    """Lines of ``#SBATCH`` for nodes of ``gpus_per_node`` GPUs (0: train on CPUs).

    A sweep without --concurrency gets one node, which is filled. ``wall_seconds``: the expected time of one trial after
    the other, if measured here, ``refit_seconds`` of which are the refit's.
    """
    resources = spec.resources
    params = spec.fixed if isinstance(spec, SweepSpec) else spec.params
    uses_gpu = gpus_per_node > 0 and preflight.uses_gpu(spec.workload, params)
    gpus = (resources.gpus_per_worker or 1) * resources.workers if uses_gpu else 0
    processes = _processes(spec, max(1, int(gpus_per_node / gpus)) if gpus else CPU_PROCESSES)
    nodes = math.ceil(processes * gpus / gpus_per_node) if gpus else 1
    workers = math.ceil(processes * resources.workers / nodes)
    lines = [f"--nodes={nodes}"]
    if gpus:
        lines.append(f"--gpus-per-node={math.ceil(processes * gpus / nodes)}")
    lines.append(f"--cpus-per-task={math.ceil(workers * resources.cpus_per_worker) + 1}")  # one is the driver's
    budget = spec.search.time_budget if isinstance(spec, SweepSpec) else None
    expected = wall_seconds and (wall_seconds - refit_seconds) / processes + refit_seconds
    if seconds := budget or (expected and 1.5 * expected):
        minutes = math.ceil((seconds + ENDING_SECONDS) / 60)
        lines.append(f"--time={minutes // 60:02d}:{minutes % 60:02d}:00")
    text = "\n".join(f"#SBATCH {line}" for line in lines)
    return text if seconds else f"{text}\n# --time is not known without --time-budget or --probe"


def _processes(spec: ExperimentSpec | SweepSpec, room: int) -> int:
    """Trials at once: those requested, else as many as have ``room``."""
    if not isinstance(spec, SweepSpec):
        return 1
    return min(spec.search.trials * spec.search.seeds, spec.search.concurrency or room)
