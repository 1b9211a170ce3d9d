"""Run an experiment on a Ray Train group of one or several workers (DDP). The only caller of ``ray.train.report``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
from ray.exceptions import RayError, RayTaskError
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, UserCallback, WorkerGroupError

from orchestrator.cluster.preemption import group_nodes
from orchestrator.cluster.ray_compat import torch_trainer
from orchestrator.cluster.reservation import has_room_for_more
from orchestrator.cluster.train_group import START_VARIABLE, Group, bundle, mark
from orchestrator.config import user_code
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint_writer import CheckpointWriter
from orchestrator.engine.experiment import Experiment
from orchestrator.engine.loop import Diverged, EpochReport, Progress
from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.runs import heartbeat, micro_batches, profiling, reports, start_point, worker
from orchestrator.runs.report_pace import ReportPace
from orchestrator.storage import remote
from orchestrator.storage.look_ledger import Look
from orchestrator.storage.object_sync import RemoteFolder, download
from orchestrator.storage.settings import NAMES, Timeouts

if TYPE_CHECKING:
    import torch

RETRIES = 3
"""Lost processes or nodes that a run survives. It continues from the last checkpoint."""

FLUSH_SECONDS = 2.0
"""Pause before an error is raised, in which Train takes the last reports: it drops those it has not seen by then."""

INBOX = "rows.jsonl"


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
    profile: int | None = None,
    pace: Mapping[str, float] | None = None,
    units_at_rungs: bool = False,
    look: Look | None = None,
) -> Group:
    """Start ``spec`` on a group of workers. Its reports are appended to ``home / INBOX``, one per line.

    Checkpoints are kept in ``home``; the group starts from the newest valid one. ``workers`` is the current number of
    workers of an elastic run. ``pace`` is the report interval, as :class:`~orchestrator.runs.report_pace.ReportPace`
    takes it, ``units_at_rungs`` as in :class:`~orchestrator.engine.experiment.Experiment`. ``outcome`` is the folder of
    the final model and its test values, or None for a trial, which only selects; ``look`` is recorded before the test.
    The group's result is the error that ended it, or None. A group that loses a process ends, and its owner starts
    another one.
    """
    from ray.train.torch import TorchConfig

    home.mkdir(parents=True, exist_ok=True)
    (home / INBOX).write_text("")
    resources = spec.resources
    trainer = torch_trainer()(
        train_worker,
        train_loop_config={
            "spec": spec.model_dump(mode="json"),
            "accumulate": micro_batches.chosen(spec, home),
            "home": str(home),
            "data": str(data),
            "stop_file": str(stop_file),
            "outcome": str(outcome) if outcome else None,
            "resume": str(resume) if resume else None,
            "selected": selected.to_json() if selected else None,
            "profile": profile,
            "timeout": timeouts.collective,
            "pace": pace,
            "units_at_rungs": units_at_rungs,
            "look": look,
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
            callbacks=[_Forward(home / INBOX)],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    return Group(trainer.fit, home, timeouts.start)


class Stopped(Exception):
    """The group was stopped before its end, and has saved."""


def train_worker(config: dict[str, Any]) -> Exception | None:
    """Function of each worker. Returns Stopped or a time limit that was exceeded, or None at the end."""
    import ray.train.torch

    from workloads import distributed

    spec = ExperimentSpec.model_validate(config["spec"])
    user_code.allow(spec.workload)
    home = Path(config["home"])
    output = Path(config["outcome"] or home)
    context = ray.train.get_context()
    rank = context.get_world_rank()
    world_size = context.get_world_size()
    if hung := heartbeat.announce(home, rank=rank):
        return hung
    device = worker.take_device(spec.resources)
    if spec.resources.gpus_per_worker:
        device = ray.train.torch.get_device()
    work = worker.experiment(
        spec,
        Path(config["data"]),
        device,
        final=config["outcome"] is not None,
        accumulate=config["accumulate"],
        rank=rank,
        world_size=world_size,
        broadcast=distributed.broadcast,
        broadcast_state=partial(_broadcast_state, device=device),
        stop=_stop_when(Path(config["stop_file"]), spec.resources, world_size) if rank == 0 else lambda: False,
        on_test_epoch=partial(worker.write_sealed, output) if rank == 0 else lambda *_: None,
        before_test=lambda epoch: _agree(partial(worker.record_look, config["look"], output, epoch), rank == 0),
        folder=home,
    )
    work.report_seconds = ReportPace(config["pace"]).seconds
    work.units_at_rungs = config["units_at_rungs"]
    resume = Path(config["resume"]) if config["resume"] else None
    selected = Progress.from_json(config["selected"]) if config["selected"] else None
    parts = (home.name, *worker.WRITTEN) if config["outcome"] else ()
    with RemoteFolder(output, parts, reads=rank > 0):
        try:
            if config["profile"] and not work.broadcast(bool(profiling.files(output))):
                group = {"rank": rank, "world_size": world_size, "broadcast": distributed.broadcast}
                build = worker.builder(Path(config["data"]), device, accumulate=config["accumulate"], **group)
                target = output if rank == 0 else None
                profiling.trace(build, spec, config["profile"], device, target)
                shown = profiling.sentence(target) if target else None
                ray.train.report({"rows": [], "profile": shown})
            start = _start(spec, home, resume, rank, device)
            with CheckpointWriter(home, worker.CHECKPOINTS_KEPT) as writer:
                if not _stream(work, home, start, selected, writer, rank == 0):
                    return Stopped()
            if work.outcome is not None and rank == 0:
                worker.write_outcome(work.outcome, output, config["accumulate"])
        except (Diverged, UserError):  # perhaps on this rank alone: returned, it would leave the others waiting
            time.sleep(FLUSH_SECONDS)
            raise
        except RuntimeError as error:
            _raise_cause(error, home, config["timeout"])
            raise
    return None


def _raise_cause(error: RuntimeError, home: Path, timeout: float) -> None:
    """Raise DeviceLost, ConnectionError or TrialTimeout if that is what a worker's ``error`` means."""
    from workloads import distributed

    reports.check_device(error)  # first: NCCL shows the loss of this worker's device too, as an error of a collective
    if distributed.peer_lost(error):
        raise ConnectionError(one_line(error)) from error
    if distributed.timed_out(error):
        raise heartbeat.waited_in_vain(home, timeout) from error


def result(group: Group) -> Exception | None:
    """What ended a group: None, Stopped, a time limit, or a worker's Diverged or UserError, which no retry helps.

    Raises TrainingFailedError or RayError for other errors and for lost processes.
    """
    try:
        ended: Exception | None = group.result()
    except WorkerGroupError as error:
        failures = map(_unwrapped, error.worker_failures.values())
        if own := next((each for each in failures if isinstance(each, Diverged | UserError)), None):
            return own
        raise
    return ended


def _agree(act: Callable[[], None], here: bool) -> None:
    """Call ``act`` on the rank that is ``here``; the others wait. Raises its UserError on every rank."""
    from workloads import distributed

    trouble = None
    if here:
        try:
            act()
        except UserError as error:
            trouble = error
    if trouble := distributed.broadcast(trouble):
        raise trouble


def _stop_when(stop_file: Path, resources: Resources, workers: int) -> Callable[[], bool]:
    """Return a function that says whether the group must save and end.

    It must on a stop request, when a node is being taken away, and when an elastic run can grow.
    """
    signals = [worker.stop_when(stop_file), group_nodes()]
    if resources.min_workers and workers < resources.workers:
        signals.append(has_room_for_more(resources))
    return lambda: any(signal() for signal in signals)


def _start(
    spec: ExperimentSpec, home: Path, resume: Path | None, rank: int, device: torch.device
) -> checkpoint.Checkpoint | None:
    """The checkpoint to go on from. Rank 0 reads and verifies it; the others get what they use of it from there.

    Raises on every rank: UserError when it cannot be read, ConnectionError when it cannot be downloaded.
    """
    start = None

    def read() -> None:
        nonlocal start
        latest = checkpoint.latest(home) or resume
        if latest is not None and remote.location_of(home):
            download(latest, checkpoint.META)
        start = start_point.state(spec, home, latest)

    try:
        _agree(read, rank == 0)
    except UserError as error:
        if error.code == UNAVAILABLE:
            raise ConnectionError(one_line(error)) from None  # the group must restart
        raise
    used = None
    if start is not None:
        # Rank 0 alone keeps the best epoch's.
        used = [dict(start.identity), start.epoch, {**start.state, "best": None, "units": {}}]
    received = _broadcast_state(used, device)
    return start if rank == 0 or received is None else checkpoint.Checkpoint(*received)


def _broadcast_state(state: Any, device: torch.device) -> Any:
    """Rank 0's ``state``, as a checkpoint may hold it, on every rank. Its tensors, on the CPU, are not pickled.

    Pickled, a state takes four times its size on every rank, and its size on the device.
    """
    from workloads import distributed

    tensors: dict[str, torch.Tensor] = {}
    skeleton = distributed.broadcast(checkpoint.take_tensors(state, tensors))
    return checkpoint.put_tensors(skeleton, distributed.broadcast_tensors(tensors, device))


def _stream(
    work: Experiment,
    home: Path,
    start: checkpoint.Checkpoint | None,
    selected: Progress | None,
    writer: CheckpointWriter,
    saves: bool,
) -> bool:
    """Train, report and, on the rank that ``saves``, save with ``writer``. Returns whether it reached its end.

    Ray gets no checkpoints: it would know the last one but not whether it is valid, and an error of rank 0 while
    writing would leave the others waiting. Raises UserError on every rank when rank 0 cannot write.
    """
    ended = False
    for report in work.stream(start, selected):
        # Both are collectives: every rank takes part.
        saved = work.checkpoint() if report.checkpoint_due else None
        selection = work.snapshot() if work.ends_selection else None
        if saved is not None or report.ended:
            _agree(partial(_write, work, report, saved, selection, home, writer), saves)
        ray.train.report(reports.payload(report))
        ended = report.ended is not None
    if not ended:
        _agree(writer.finish, saves)
    return ended


def _write(
    work: Experiment,
    report: EpochReport,
    saved: checkpoint.Checkpoint | None,
    selection: checkpoint.Checkpoint | None,
    home: Path,
    writer: CheckpointWriter,
) -> None:
    """Write the checkpoint, the selection's last state and the units that are due. Raises UserError."""
    if selection is not None:
        checkpoint.write(home / start_point.SELECTION, selection)
    if saved is not None:
        writer.save(saved, work.order, wait=report.ended is not None)
    if report.ended:
        writer.finish()
        if not work.final:
            worker.write_table(work.validation_units, home / worker.UNITS)


class _Forward(UserCallback):  # type: ignore[misc]
    """Callback in Train's controller that appends reports to a file. The controller runs on the driver's node."""

    def __init__(self, inbox: Path) -> None:
        self.inbox = inbox

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        with self.inbox.open("a") as stream:
            reports.send(stream, metrics[0])


def lost_a_process(error: ray.train.TrainingFailedError | RayError) -> bool:
    """Whether a process of the group has died, so that a retry may succeed. False for errors of workload and memory."""
    if not isinstance(error, WorkerGroupError):
        return True  # the controller died, or workers did not start
    failures = [_unwrapped(each) for each in error.worker_failures.values()]
    # One error of the workload is enough: the other workers then report a lost connection.
    return bool(failures) and all(
        isinstance(each, RayError | ConnectionError | reports.DeviceLost)
        and not (isinstance(each, RayTaskError) or reports.is_out_of_memory(each))
        for each in failures
    )


def needs_less_memory(error: BaseException) -> BaseException | None:
    """The error of memory of one of the workers, if that has ended the group."""
    failures = map(_unwrapped, getattr(error, "worker_failures", {}).values())
    return next(filter(reports.is_out_of_memory, failures), None)


def _unwrapped(failure: BaseException) -> BaseException:
    """A worker's error, or how it died, without the wrappers of Train and Ray."""
    lost = getattr(failure, "health_check_failure", failure)
    return getattr(lost, "cause", None) or lost


def _consequence(failure: tuple[int, BaseException]) -> tuple[bool, bool, int]:
    """Sort key of a rank's failure: deaths, then errors of its own, then connections lost in consequence of them."""
    rank, error = failure
    inner = _unwrapped(error)
    ends_a_process = hasattr(error, "health_check_failure") or isinstance(inner, reports.DeviceLost)
    return not ends_a_process, isinstance(inner, ConnectionError), rank


def failure_text(error: BaseException) -> str:
    """The error of the first failed worker, without Ray's wrapper."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, first = min(failures.items(), key=_consequence)
        inner = _unwrapped(first)
        if hasattr(first, "health_check_failure"):
            return f"worker {rank}: {reports.death_cause(str(inner))}"
        # Train puts the tracebacks into its message and merges those of equal errors.
        trace = re.search(rf"\[Rank (?:\d+,)*{rank}\b.*?(?=\n\[Rank |\Z)", str(error), re.DOTALL)
        text = reports.describe(inner, trace[0] if trace else "") if isinstance(inner, Exception) else one_line(inner)
        return f"worker {rank}: {text}"
    error = getattr(error, "controller_failure", error)
    words = one_line(error) if str(error) else type(error).__name__
    return words.replace(START_VARIABLE, NAMES["start_timeout"][0])  # Ray's is set from ours
