"""What a run or sweep would take, before it is started: trials, devices, concurrency, hours, storage."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import cluster, preflight
from orchestrator.console import Console, duration
from orchestrator.search import population, samplers, spaces
from orchestrator.settings import Settings
from orchestrator.spec import ExperimentSpec, SweepSpec
from orchestrator.training import worker

KEPT = 2
"""Checkpoints of a trial at a time."""


@dataclass(frozen=True)
class Probe:
    """One epoch, measured: the second, since the first loads and warms up."""

    epoch_seconds: float
    start_seconds: float
    checkpoint_bytes: int


@dataclass(frozen=True)
class Plan:
    """What ``orchestrator plan --json`` prints. Seconds, hours and bytes are None where nothing was measured.

    ``epochs_at_most`` counts every trial to its end; ``epochs_expected`` what the scheduler is known to leave of it.
    """

    kind: str
    workload: str
    trials: int
    seeds: int
    epochs_at_most: int
    epochs_expected: int
    workers: int
    cpus: float
    gpus: float
    nodes: int
    at_once: int
    fitting: int
    epoch_seconds: float | None
    device: str
    device_hours_at_most: float | None
    device_hours_expected: float | None
    wall_seconds_expected: float | None
    storage_bytes: int | None

    def rows(self) -> list[list[Any]]:
        """Name and value of each line of the table."""
        each = f"{self.workers} worker{'s' * (self.workers > 1)} of {self.cpus:g} CPU"
        rows = [
            ["trials", f"{self.trials}" + (f" x {self.seeds} seeds" if self.seeds > 1 else "")],
            ["epochs", f"{self.epochs_at_most} at most, about {self.epochs_expected} expected"],
            ["a trial holds", each + (f", {self.gpus:g} GPU" if self.gpus else "")],
            ["at once", f"{self.at_once} ({self.fitting} fit on {self.nodes} node{'s' * (self.nodes > 1)})"],
        ]
        if self.epoch_seconds is None:
            return [*rows, ["time and storage", "not measured; --probe trains two epochs to find out"]]
        assert self.wall_seconds_expected is not None
        assert self.storage_bytes is not None
        return [
            *rows,
            ["an epoch", f"{self.epoch_seconds:.3g} s"],
            [
                f"{self.device} hours",
                f"{self.device_hours_at_most:.3g} at most, about {self.device_hours_expected:.3g} expected",
            ],
            ["time", f"about {duration(self.wall_seconds_expected)}"],
            ["storage", _bytes(self.storage_bytes)],
        ]


def show(spec: ExperimentSpec | SweepSpec, settings: Settings, *, local: bool, probe: bool, as_json: bool) -> None:
    """Print the plan of ``spec``. Raises UserError (exit 3) with the arithmetic when it can not run here at all."""
    preflight.services(settings, spec.resources, ray=not local)
    if local or not settings.ray_address:
        found = plan(spec, cluster.this_machine(), measure(spec, settings) if probe else None, local=local)
    else:
        with cluster.cluster(settings.ray_address) as nodes:
            cluster.check_fit(nodes, spec.resources)
            cluster.check_storage(settings.storage)
            found = plan(spec, nodes, _measure_there(spec, settings) if probe else None, local=False)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    Console().table(f"{found.kind} of {found.workload}", ["", "plan"], found.rows())


def plan(spec: ExperimentSpec | SweepSpec, nodes: list[cluster.Node], probe: Probe | None, *, local: bool) -> Plan:
    """The plan of ``spec`` on ``nodes``."""
    resources = spec.resources
    fitting = 1 if local else cluster.check_fit(nodes, resources)
    trials, seeds, refit = 1, 1, spec.plan.refit not in (False, "only")
    expected = epochs = spec.plan.epochs
    at_once, begun, kept = 1, 1.0, KEPT
    if isinstance(spec, SweepSpec):
        trials, seeds = spec.search.trials, spec.search.seeds
        at_once = min(spec.search.concurrency or fitting, fitting, trials * seeds)
        share = expected_share(spec)
        # The seeds beyond the first are trained only where the first was not stopped.
        expected = math.ceil(trials * epochs * share + trials * survivors(spec) * (seeds - 1) * epochs)
        epochs = trials * seeds * epochs
        begun = trials * (1 + survivors(spec) * (seeds - 1))
        if spec.search.scheduler == "pbt":  # a member begins anew after each meeting
            begun, kept = trials * (1 + len(samplers.rungs(spec.plan.epochs, "pbt"))), population.KEPT
    settle = spec.plan.epochs if refit else 0
    epochs, expected = epochs + settle, expected + settle
    seconds = probe.epoch_seconds if probe else None
    hours = None if seconds is None else seconds * resources.devices / 3600
    starts = 0.0 if probe is None else probe.start_seconds * begun / at_once
    return Plan(
        kind="sweep" if isinstance(spec, SweepSpec) else "run",
        workload=spec.workload,
        trials=trials,
        seeds=seeds,
        epochs_at_most=epochs,
        epochs_expected=expected,
        workers=resources.workers,
        cpus=resources.cpus_per_worker,
        gpus=resources.gpus_per_worker,
        nodes=1 if local else len(nodes),
        at_once=at_once,
        fitting=fitting,
        epoch_seconds=seconds,
        device="GPU" if resources.gpus_per_worker else "CPU",
        device_hours_at_most=None if hours is None else hours * epochs,
        device_hours_expected=None if hours is None else hours * expected,
        wall_seconds_expected=None if seconds is None else seconds * ((expected - settle) / at_once + settle) + starts,
        storage_bytes=None if probe is None else probe.checkpoint_bytes * (kept * trials * seeds + KEPT),
    )


def survivors(spec: SweepSpec) -> float:
    """The share of the trials that reach their last epoch."""
    if spec.search.scheduler in ("asha", "hyperband"):
        found = samplers.brackets(spec.plan.epochs, spec.search.scheduler)
        return float(sum(part * samplers.REDUCTION ** -len(rungs) for part, rungs in found))
    return 0.5 if spec.search.scheduler == "median" else 1.0


def expected_share(spec: SweepSpec) -> float:
    """The share of all epochs that is trained: at each rung ASHA keeps a third, the median a half of all by the end."""
    if spec.search.scheduler == "median":
        return 0.75
    if spec.search.scheduler in ("none", "pbt"):
        return 1.0
    share = 0.0
    for part, rungs in samplers.brackets(spec.plan.epochs, spec.search.scheduler):
        bounds = [0, *rungs, spec.plan.epochs]
        kept = [samplers.REDUCTION**-index for index in range(len(rungs) + 1)]
        share += part * sum(k * (end - start) for k, start, end in zip(kept, bounds, bounds[1:]))
    return share / spec.plan.epochs


def measure(spec: ExperimentSpec | SweepSpec, settings: Settings) -> Probe:
    """Train two epochs of one experiment in this process; of a sweep, of the space's first draw."""
    return _measure(_one(spec), settings.data)


def _measure_there(spec: ExperimentSpec | SweepSpec, settings: Settings) -> Probe:
    """The same on the cluster, on a device of a trial's size."""
    import ray

    from orchestrator.training.group import bundle

    need = bundle(spec.resources)
    task = ray.remote(_measure).options(num_cpus=need["CPU"], num_gpus=need.get("GPU", 0))
    probe: Probe = ray.get(task.remote(_one(spec), settings.data))
    return probe


def _one(spec: ExperimentSpec | SweepSpec) -> ExperimentSpec:
    update: Mapping[str, Any] = {"epochs": 2, "patience": 0, "decide_at": (1,), "refit": False}
    plan = spec.plan.model_copy(update=update)
    if isinstance(spec, ExperimentSpec):
        return spec.model_copy(update={"plan": plan})
    import optuna

    space = spaces.load(spec.workload, spec.search.space)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=spec.seed))
    params = spaces.suggest(space, study.ask(), spec.fixed)
    first = spec.trial(0, preflight.parameters(spec.workload, params))
    return first.model_copy(update={"plan": plan, "population": None})


def _measure(spec: ExperimentSpec, data: Path) -> Probe:
    started = time.monotonic()
    work = worker.experiment(spec, data, worker.take_device(spec.resources), final=False)
    moments = [time.monotonic() for _ in work.stream()]
    with tempfile.TemporaryDirectory() as folder:
        written = worker.save(work, Path(folder))
        size = sum(file.stat().st_size for file in written.iterdir())
    return Probe(moments[-1] - moments[0], moments[0] - started, size)


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
