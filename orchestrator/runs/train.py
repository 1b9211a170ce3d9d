"""An experiment on a Ray Train group of one or several workers (DDP). The only caller of ``ray.train.report``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.engine import checkpoint
from orchestrator.engine.experiment import Experiment
from orchestrator.engine.loop import Diverged, EpochReport, Progress
from orchestrator.errors import UserError, one_line
from orchestrator.runs import heartbeat, reports, worker
from orchestrator.storage import remote
from orchestrator.storage.object_sync import RemoteFolder, download
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError

    from orchestrator.cluster.train_group import Group

RETRIES = 3
"""Lost processes or nodes that a run survives; each goes on from the last checkpoint."""

INBOX = "rows.jsonl"


class Timeouts(NamedTuple):
    """Seconds that a worker waits for the others in a collective operation, and that a group may take to come up."""

    collective: int
    start: int

    @classmethod
    def of(cls, settings: Settings) -> Timeouts:
        return cls(settings.collective_timeout, settings.start_timeout)


def start(
    spec: ExperimentSpec,
    home: Path,
    data: Path,
    *,
    stop_file: Path,
    timeouts: Timeouts,
    workers: int | None = None,
    outcome: Path | None = None,
    resume: Path | None = None,
    selected: Progress | None = None,
) -> Group:
    """Start ``spec`` on a group of workers; its reports go, a line each, to an empty ``home / INBOX``.

    Checkpoints are kept in ``home``, and the newest whole one there is gone on from. ``workers`` is how many of an
    elastic run's there are now. ``outcome`` is where the final model and its test go; None for a trial, which only
    selects. The group's result is the error that ended it, or None; a group that loses a process ends, and its owner
    starts another one.
    """
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    from orchestrator.cluster.ray_compat import torch_trainer
    from orchestrator.cluster.train_group import Group, bundle, mark

    home.mkdir(parents=True, exist_ok=True)
    (home / INBOX).write_text("")
    resources = spec.resources
    trainer = torch_trainer()(
        train_worker,
        train_loop_config={
            "spec": spec.model_dump(mode="json"),
            "home": str(home),
            "data": str(data),
            "stop_file": str(stop_file),
            "outcome": str(outcome) if outcome else None,
            "resume": str(resume) if resume else None,
            "selected": selected.to_json() if selected else None,
        },
        torch_config=TorchConfig(timeout_s=timeouts.collective),
        scaling_config=ScalingConfig(
            num_workers=workers or resources.workers,
            use_gpu=bool(resources.gpus_per_worker),
            resources_per_worker=bundle(resources) | mark(home),
        ),
        run_config=RunConfig(
            name=home.name,
            storage_path=str(home.parent),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            callbacks=[_forward(home / INBOX)],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    return Group(trainer.fit, home, timeouts.start)


class Stopped(Exception):
    """The group was told to end before its time, and has saved."""


def train_worker(config: dict[str, Any]) -> Exception | None:
    """What each worker of the group runs. Returns what ended it before its time, None when all is well."""
    import ray.train
    import ray.train.torch

    from workloads import distributed

    spec, home = ExperimentSpec.model_validate(config["spec"]), Path(config["home"])
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    if hung := heartbeat.announce(home, rank=rank):
        return hung
    device = worker.take_device(spec.resources)
    work = worker.experiment(
        spec,
        Path(config["data"]),
        ray.train.torch.get_device() if spec.resources.gpus_per_worker else device,
        final=config["outcome"] is not None,
        rank=rank,
        world_size=world_size,
        agree=distributed.broadcast,
        stop=_stop_when(Path(config["stop_file"]), spec.resources, world_size) if rank == 0 else lambda: False,
        on_sealed=partial(worker.write_sealed, Path(config["outcome"] or home)) if rank == 0 else lambda *_: None,
    )
    resume = Path(config["resume"]) if config["resume"] else None
    selected = Progress.from_json(config["selected"]) if config["selected"] else None
    parts = (home.name, *worker.WRITTEN) if config["outcome"] else ()
    with RemoteFolder(Path(config["outcome"] or home), parts, reads=rank > 0):
        try:
            found = checkpoint.latest(home) or resume
            if remote.behind(home):
                found = _as_rank_0(found)
            if not _stream(work, spec, home, found, selected, rank):
                return Stopped()
            if work.outcome is not None and rank == 0:
                worker.write_outcome(work.outcome, Path(config["outcome"]))
        except (Diverged, UserError) as error:  # every rank raises alike, and would again: no case for a retry
            return error
        except RuntimeError as error:
            if distributed.peer_lost(error):
                raise ConnectionError(one_line(error)) from error
            reports.check_device(error)
            raise
    return None


def _stop_when(stop_file: Path, resources: Resources, workers: int) -> Callable[[], bool]:
    """The whole group is to save and end: it was asked to, a node is being taken away, or there is room for more."""
    from orchestrator.cluster.preemption import group_nodes
    from orchestrator.cluster.reservation import has_room_for_more

    signals = [worker.stop_when(stop_file), group_nodes()]
    if resources.min_workers and workers < resources.workers:
        signals.append(has_room_for_more(resources))
    return lambda: any(signal() for signal in signals)


def _as_rank_0(found: Path | None) -> Path | None:
    """The checkpoint that rank 0 goes on from, also where this rank's node has not seen it yet."""
    from workloads import distributed

    chosen = distributed.broadcast(found)
    if chosen is not None:
        try:
            download(chosen, checkpoint.META)
        except UserError as error:
            raise RuntimeError(one_line(error)) from None  # this rank alone: the group must start again
    return chosen


def _stream(
    work: Experiment, spec: ExperimentSpec, home: Path, found: Path | None, selected: Progress | None, rank: int
) -> bool:
    """Train, report and save from the checkpoint ``found`` on. Returns whether it came to its end.

    Ray gets no checkpoint: it would know which was last, not whether it is whole, and rank 0's trouble in writing one
    would leave the others waiting. Raises UserError, on every rank, when rank 0 cannot write.
    """
    import ray.train

    ended = False
    for report in work.stream(checkpoint.read(found, spec.identity) if found else None, selected):
        saved = work.checkpoint() if report.checkpoint_due else None  # a collective: every rank takes part
        if saved is not None or report.ended:
            trouble = _written(work, report, saved, home) if rank == 0 else None
            if trouble := work.agree(trouble):
                raise trouble
        ray.train.report(reports.payload(report))
        ended = report.ended is not None
    return ended


def _written(
    work: Experiment, report: EpochReport, saved: checkpoint.Checkpoint | None, home: Path
) -> UserError | None:
    """Write what is due; the error when that cannot be."""
    try:
        if saved is not None:
            worker.keep(saved, home / checkpoint.name(work.order))
        if report.ended and not work.final:
            worker.write_table(work.validation_units, home / worker.UNITS)
    except UserError as error:
        return error
    return None


def _forward(inbox: Path) -> Any:
    """A callback in Train's controller, which lives on the starter's node: reports go there by a file."""
    from ray.train import UserCallback

    class Forward(UserCallback):  # type: ignore[misc]
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            with inbox.open("a") as stream:
                reports.send(stream, metrics[0])

    return Forward()


def lost_a_process(error: TrainingFailedError | RayError) -> bool:
    """Whether a process of the group has died, so that another attempt may succeed; not where the workload raised."""
    from ray.exceptions import RayError, RayTaskError
    from ray.train import WorkerGroupError

    if not isinstance(error, WorkerGroupError):
        return True  # the controller's death, or workers that did not come up
    failures = [getattr(each, "health_check_failure", each) for each in error.worker_failures.values()]
    return any(
        isinstance(each, RayError | ConnectionError | reports.DeviceLost) and not isinstance(each, RayTaskError)
        for each in failures
    )


def cause(error: BaseException) -> str:
    """The first worker's own error, without Ray's wrapping."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        # When one dies the others lose their connection to it: that is no cause.
        rank, first = min(failures.items(), key=lambda each: (not hasattr(each[1], "health_check_failure"), each[0]))
        if lost := getattr(first, "health_check_failure", None):
            return f"worker {rank}: {reports.death_cause(str(lost))}"
        inner = getattr(first, "_base_exc", None) or getattr(first, "cause", None) or first
        # Train has the tracebacks in its own message, those of equal errors together.
        trace = re.search(rf"\[Rank (?:\d+,)*{rank}\b.*?(?=\n\[Rank |\Z)", str(error), re.DOTALL)
        text = reports.describe(inner, trace[0] if trace else "") if isinstance(inner, Exception) else one_line(inner)
        return f"worker {rank}: {text}"
    error = getattr(error, "controller_failure", error)
    return one_line(error) if str(error) else type(error).__name__
