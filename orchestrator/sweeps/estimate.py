"""What a run or sweep would take, before it is started: trials, devices, concurrency, hours, storage."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cluster import connection, preflight, shared_storage
from orchestrator.config import user_code
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import Console, duration, json_line
from orchestrator.errors import RunFailed, UserError, plural
from orchestrator.runs import reports, worker
from orchestrator.search import pbt, schedulers, spaces
from orchestrator.storage.prices import Prices
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import pack_plan
from orchestrator.sweeps.slurm import header

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Probe:
    """One epoch of a trial, measured: the second, since the first loads and warms up.

    Of trials that are trained together ``epoch_seconds`` and ``start_seconds`` are the share of one. The winner is
    refitted alone, in ``alone_seconds`` an epoch.
    """

    epoch_seconds: float
    alone_seconds: float
    start_seconds: float
    checkpoint_bytes: int


@dataclass(frozen=True)
class Forecast:
    """What ``orchestrator plan --json`` prints. Seconds, hours and bytes are None where nothing was measured.

    ``epochs_at_most`` counts every trial to its end; ``epochs_expected`` what the scheduler is known to leave of it.
    Both count the refit too, of ``refit_epochs`` at most. ``at_once`` trials share ``processes``, of which ``fitting``
    would fit.
    """

    kind: str
    workload: str
    trials: int
    seeds: int
    epochs_at_most: int
    epochs_expected: int
    refit_epochs: int
    workers: int
    cpus: float
    gpus: float
    nodes: int
    at_once: int
    processes: int
    fitting: int
    epoch_seconds: float | None
    alone_seconds: float | None
    device: str
    device_hours_at_most: float | None
    device_hours_expected: float | None
    wall_seconds_expected: float | None
    storage_bytes: int | None
    gpus_open: bool = False
    """Whether the cluster decides: none was asked, GPUs were not set, and the parameters can use one."""
    cost_at_most: float | None = None
    """Cost by the setting ``prices``; None where it is not set or nothing was measured."""
    cost_expected: float | None = None
    cost_unit: str = ""

    def rows(self) -> list[list[Any]]:
        """Name and value of each line of the table."""
        each = f"{plural(self.workers, 'worker')} of {self.cpus:g} CPU"
        packed = self.at_once > self.processes
        together = f" in {self.processes} process{'es' * (self.processes > 1)}" if packed else ""
        together += ", or as many as fit into a GPU's memory" if packed and self.gpus else ""
        rows = [
            ["trials", f"{self.trials}" + (f" x {self.seeds} seeds" if self.seeds > 1 else "")],
            ["epochs", self._epochs()],
            [f"a {'process' if packed else 'trial'} holds", each + self._gpus()],
            ["at once", f"{self.at_once}{together} ({self.fitting} fit on {plural(self.nodes, 'node')})"],
        ]
        if self.epoch_seconds is None:
            return [*rows, ["time and storage", "not measured; --probe trains two epochs to find out"]]
        assert self.wall_seconds_expected is not None
        assert self.storage_bytes is not None
        return [
            *rows,
            ["an epoch", f"{self.epoch_seconds:.3g} s" + (f", alone {self.alone_seconds:.3g} s" if packed else "")],
            [
                f"{self.device} hours",
                f"{self.device_hours_at_most:.3g} at most, about {self.device_hours_expected:.3g} expected",
            ],
            *self._cost(),
            ["time", f"about {duration(self.wall_seconds_expected)}"],
            ["storage", _bytes(self.storage_bytes)],
        ]

    def _cost(self) -> list[list[Any]]:
        if self.cost_at_most is None or self.cost_expected is None:
            return []
        unit = Prices(unit=self.cost_unit)
        return [["cost", f"{unit.text(self.cost_at_most)} at most, about {unit.text(self.cost_expected)} expected"]]

    def _gpus(self) -> str:
        if self.gpus:
            return f", {self.gpus:g} GPU"
        return "; GPUs are decided on the cluster, unless --gpus-per-worker is given" if self.gpus_open else ""

    def _epochs(self) -> str:
        """``50 + 50 refit at most``, with the expected number if that is less."""
        refit = f" + {self.refit_epochs} refit" if self.refit_epochs else ""
        text = f"{self.epochs_at_most - self.refit_epochs}{refit} at most"
        if self.epochs_expected == self.epochs_at_most:
            return text
        return f"{text}, about {self.epochs_expected - self.refit_epochs}{refit} expected"


def show(
    spec: ExperimentSpec | SweepSpec,
    settings: Settings,
    *,
    local: bool,
    probe: bool,
    as_json: bool,
    slurm: int | None = None,
) -> None:
    """Print the forecast of ``spec``, or with ``slurm`` GPUs a node the options of sbatch.

    Raises UserError (exit 3) with the arithmetic when it cannot run here at all.
    """
    if slurm is not None:
        measured = measure(spec, settings) if probe else None
        alone = plan(spec, [], measured, local=True)
        refit = alone.refit_epochs * measured.alone_seconds if measured else 0.0
        print(header(spec, slurm, alone.wall_seconds_expected, refit))
        return
    preflight.services(settings, spec.resources, ray=not local)
    if local or not settings.ray_address:
        here = connection.this_machine()
        forecast = plan(
            spec, here, measure(spec, settings, _together(spec, here, local)) if probe else None, local=local
        )
        is_open = not local and "gpus_per_worker" not in spec.resources.model_fields_set
        forecast = replace(forecast, gpus_open=is_open)
    else:
        with connection.cluster(settings.ray_address) as nodes:
            connection.check_fit(nodes, spec.resources)
            shared_storage.check_storage(settings.storage, settings.start_timeout)
            if isinstance(spec, SweepSpec):
                shared_storage.check_search(spec.search, settings.remote, len(nodes))
            measured = _measure_there(spec, settings, _together(spec, nodes, local)) if probe else None
            forecast = plan(spec, nodes, measured, local=False)
    forecast = _priced(forecast, spec, settings.prices)
    if as_json:
        print(json_line(asdict(forecast)))
        return
    Console().table(f"{forecast.kind} of {forecast.workload}", ["", "plan"], forecast.rows())


def _priced(forecast: Forecast, spec: ExperimentSpec | SweepSpec, prices: Prices | None) -> Forecast:
    if prices is None or forecast.device_hours_at_most is None or forecast.device_hours_expected is None:
        return forecast
    hour = prices.of_device_hour(spec.resources)
    most = forecast.device_hours_at_most * hour
    expected = forecast.device_hours_expected * hour
    return replace(forecast, cost_at_most=most, cost_expected=expected, cost_unit=prices.unit)


def plan(
    spec: ExperimentSpec | SweepSpec, nodes: list[connection.Node], probe: Probe | None, *, local: bool
) -> Forecast:
    """What ``spec`` would take on ``nodes``."""
    resources = spec.resources
    fitting = 1 if local else connection.check_fit(nodes, resources)
    trials = 1
    seeds = 1
    repeats = 0
    refit = spec.plan.refit not in (False, "only")
    expected = epochs = spec.plan.epochs
    capacities = _capacities(spec, fitting)
    begun = 1.0
    kept = worker.CHECKPOINTS_KEPT
    if isinstance(spec, SweepSpec):
        trials = spec.search.trials
        seeds = spec.search.seeds
        share = expected_share(spec)
        # The seeds beyond the first are trained only where the first was not stopped.
        expected = math.ceil(trials * epochs * share + trials * survivors(spec) * (seeds - 1) * epochs)
        epochs = trials * seeds * epochs
        begun = trials * (1 + survivors(spec) * (seeds - 1))
        repeats = spec.search.repeats
        expected += repeats * spec.plan.epochs
        epochs += repeats * spec.plan.epochs
        begun += repeats
        if spec.search.scheduler == "pbt":  # a member begins again after each meeting
            begun = trials * (1 + len(schedulers.rungs(spec.plan.epochs, "pbt")))
            kept = pbt.MEMBER_CHECKPOINTS_KEPT
    refit_epochs = spec.plan.epochs if refit else 0
    at_most_hours = expected_hours = wall = storage = None
    if probe:
        alone = probe.alone_seconds * refit_epochs
        search = probe.epoch_seconds * expected + probe.start_seconds * begun
        hours = resources.devices / 3600
        at_most_hours = hours * (probe.epoch_seconds * epochs + alone)
        expected_hours = hours * (probe.epoch_seconds * expected + alone)
        wall = search / len(capacities) + alone
        storage = probe.checkpoint_bytes * (kept * (trials * seeds + repeats) + worker.CHECKPOINTS_KEPT)
    return Forecast(
        kind="sweep" if isinstance(spec, SweepSpec) else "run",
        workload=spec.workload,
        trials=trials,
        seeds=seeds,
        epochs_at_most=epochs + refit_epochs,
        epochs_expected=expected + refit_epochs,
        refit_epochs=refit_epochs,
        workers=resources.workers,
        cpus=resources.cpus_per_worker,
        gpus=resources.gpus_per_worker,
        nodes=1 if local else sum(node["CPU"] > 0 for node in nodes),
        at_once=sum(capacities),
        processes=len(capacities),
        fitting=fitting,
        epoch_seconds=probe.epoch_seconds if probe else None,
        alone_seconds=probe.alone_seconds if probe else None,
        device="GPU" if resources.gpus_per_worker else "CPU",
        device_hours_at_most=at_most_hours,
        device_hours_expected=expected_hours,
        wall_seconds_expected=wall,
        storage_bytes=storage,
    )


def _capacities(spec: ExperimentSpec | SweepSpec, fitting: int) -> tuple[int, ...]:
    return pack_plan.capacities(spec, fitting) if isinstance(spec, SweepSpec) else (1,)


def _together(spec: ExperimentSpec | SweepSpec, nodes: list[connection.Node], local: bool) -> int:
    """Trials in the fullest process."""
    return max(_capacities(spec, 1 if local else connection.check_fit(nodes, spec.resources)))


def survivors(spec: SweepSpec) -> float:
    """The share of the trials that reach their last epoch."""
    if spec.search.scheduler in ("asha", "hyperband"):
        return float(sum(part * schedulers.REDUCTION ** -len(rungs) for part, rungs in _brackets(spec)))
    return {"median": 0.5, "racing": 0.1}.get(spec.search.scheduler, 1.0)


def expected_share(spec: SweepSpec) -> float:
    """The share of all epochs that is trained.

    At each rung ASHA keeps a third, the median a half of all by the end; racing as in the replays of ``benchmarks``.
    """
    if spec.search.scheduler not in ("asha", "hyperband"):
        return {"median": 0.75, "racing": 0.3}.get(spec.search.scheduler, 1.0)
    share = 0.0
    for part, rungs in _brackets(spec):
        bounds = [0, *rungs, spec.plan.epochs]
        kept = [schedulers.REDUCTION**-index for index in range(len(rungs) + 1)]
        share += part * sum(k * (end - start) for k, start, end in zip(kept, bounds, bounds[1:]))
    return share / spec.plan.epochs


def _brackets(spec: SweepSpec) -> list[tuple[float, tuple[int, ...]]]:
    """The share of trials in each bracket, and its rungs."""
    brackets = schedulers.brackets(spec.plan.epochs, spec.search.scheduler)
    total = sum(size for size, _ in brackets)
    return [(size / total, rungs) for size, rungs in brackets]


def measure(spec: ExperimentSpec | SweepSpec, settings: Settings, together: int = 1) -> Probe:
    """Train two epochs of one experiment in this process; of a sweep, of the space's first ``together`` draws.

    Raises UserError, and RunFailed when they cannot be trained.
    """
    try:
        return _measure(_probed(spec, together), settings.data)
    except (UserError, RunFailed):
        raise
    except Exception as error:
        raise RunFailed("The probe", reports.describe(error)) from error


def _measure_there(spec: ExperimentSpec | SweepSpec, settings: Settings, together: int) -> Probe:
    """The same on the cluster, on devices of a trial's size."""
    import ray

    from orchestrator.cluster.train_group import bundle

    need = bundle(spec.resources)
    task = ray.remote(_measure).options(num_cpus=need["CPU"], num_gpus=need.get("GPU", 0))
    try:
        probe: Probe = ray.get(task.remote(_probed(spec, together), settings.data))
    except ray.exceptions.RayTaskError as error:
        raise RunFailed("The probe", reports.describe(reports.without_ray_wrapper(error), str(error))) from error
    except ray.exceptions.RayError as error:
        raise RunFailed("The probe", reports.death_cause(str(error))) from error
    return probe


def _probed(spec: ExperimentSpec | SweepSpec, together: int) -> list[ExperimentSpec]:
    update: Mapping[str, Any] = {"epochs": 2, "patience": 0, "decide_at": (1,), "refit": False, "init": None}
    plan = spec.plan.model_copy(update=update)
    if isinstance(spec, ExperimentSpec):
        return [spec.model_copy(update={"plan": plan, "origin": None})]
    drawn = spaces.draws(spaces.load(spec.workload, spec.search.space), spec.fixed, spec.seed, together)
    trials = [spec.trial(k, preflight.parameters(spec.workload, params)) for k, params in enumerate(drawn)]
    return [trial.model_copy(update={"plan": plan, "population": None, "origin": None}) for trial in trials]


def _measure(specs: list[ExperimentSpec], data: Path) -> Probe:
    started = time.monotonic()
    user_code.allow(specs[0].workload)
    device = worker.take_device(specs[0].resources)
    work = worker.experiment(specs[0], data, device, final=False)
    ends = {report.epoch: time.monotonic() for report in work.stream()}
    with tempfile.TemporaryDirectory() as folder:
        written = worker.save(work, Path(folder))
        size = sum(file.stat().st_size for file in written.iterdir())
    start = ends[1] - started
    epoch = ends[2] - ends[1]
    if len(specs) == 1:
        return Probe(epoch, epoch, start, size)
    start, shared = _measure_together(specs, data, device)
    return Probe(shared, epoch, start, size)


def _measure_together(specs: list[ExperimentSpec], data: Path, device: torch.device) -> tuple[float, float]:
    """Share per trial of the time of the first and of the second epoch."""
    runner = pack_plan.PackRunner(device)
    moments = [time.monotonic()]
    with tempfile.TemporaryDirectory() as folder:
        for number, spec in enumerate(specs):
            config = {
                "number": number,
                "spec": spec.model_dump(mode="json"),
                "folder": f"{folder}/{number}",
                "data": str(data),
                "keep": worker.CHECKPOINTS_KEPT,
                "save_at_rungs": False,
                "measure": [],
            }
            runner.begin(config)
        while len(runner):
            payloads = runner.step()
            for seed_run, payload in payloads:
                if cause := payload.get("error"):
                    raise RunFailed("The probe", cause)
                if payload["done"]:
                    runner.drop(seed_run)
            if any(payload["epoch"] for _, payload in payloads):  # not that of untouched weights alone
                moments.append(time.monotonic())
    began, first, *_, last = moments
    return (first - began) / len(specs), (last - first) / len(specs)


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
