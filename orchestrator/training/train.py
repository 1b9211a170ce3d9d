"""An experiment on Ray Train: one worker or a DDP group. The only caller of ``ray.train.report``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.cluster import check_fit, check_storage, cluster
from orchestrator.engine import Diverged, Progress, Row
from orchestrator.errors import RunFailed, UserError, one_line
from orchestrator.experiment import Experiment
from orchestrator.session import Session
from orchestrator.settings import Settings
from orchestrator.spec import ExperimentSpec
from orchestrator.storage import checkpoint, remote
from orchestrator.storage.mirror import Carried, bring
from orchestrator.storage.records import RunFolder
from orchestrator.training import messages, watch, worker

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from orchestrator.training.group import Group

RETRIES = 3
"""Lost processes or nodes that a run survives; each goes on from the last checkpoint."""

NAME = "train"
"""Ray's folder below the run's own: a Train run's name is its resume key."""

INBOX = "rows.jsonl"
PATIENCE_SECONDS = 10.0
"""After so long a user is told what is being waited for."""


def train(
    spec: ExperimentSpec,
    folder: RunFolder,
    settings: Settings,
    session: Session,
    rows: Callable[[list[Row]], None],
) -> bool:
    """Run ``spec`` on a Ray Train group, handing rows to ``rows`` as they arrive.

    Returns False when it was stopped before its end. Raises RunFailed or UserError when a worker did.
    """
    with cluster(settings.ray_address) as nodes, session.on_cluster():
        check_fit(nodes, spec.resources)
        check_storage(settings.storage)
        return follow(spec, folder.path, settings.data, session, rows)


def follow(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    *,
    resume: Path | None = None,
    selected: Progress | None = None,
) -> bool:
    """Run ``spec`` on the connected cluster with its outcome below ``folder``; else as :func:`train`.

    ``resume`` is a checkpoint to start from when the folder has none of its own, ``selected`` a selection that
    only wants its refit.
    """
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError

    from orchestrator.training.group import reserve

    home = folder / NAME
    if worker.outcome_of(folder):
        if (home / INBOX).exists():  # its driver may have died before it read the last of them
            with (home / INBOX).open() as inbox:
                deliver(inbox, rows)
        return True
    with reserve(spec.resources, _patience(session)) as place:
        if place is None:
            return False
        group = start(
            spec,
            home,
            data,
            place,
            stop_file=session.folder.stop_file,
            outcome=folder,
            resume=resume,
            selected=selected,
        )
        with (home / INBOX).open() as inbox:
            ended = False
            while not ended:
                ended = group.ended(0.2)  # before reading: what is written until then is read
                session.interrupts.asked()
                deliver(inbox, rows)
        try:
            failure = group.result()
        except (TrainingFailedError, RayError) as error:
            raise RunFailed(session.folder.id, cause(error), str(session.folder.log)) from error
    if failure is not None:
        if isinstance(failure, Diverged):
            rows(list(failure.rows))
        raise messages.failed(session.folder, failure)
    if not session.interrupts.asked():
        bring(folder, worker.OUTCOME, worker.WRITTEN)
    return worker.outcome_of(folder) is not None


def start(
    spec: ExperimentSpec,
    home: Path,
    data: Path,
    place: PlacementGroup,
    *,
    stop_file: Path,
    outcome: Path | None = None,
    resume: Path | None = None,
    selected: Progress | None = None,
) -> Group:
    """Start ``spec`` on the workers' places; its reports go, a line each, to an empty ``home / INBOX``.

    Checkpoints are kept in ``home``, which Ray Train resumes by. ``outcome`` is where the final model and its
    test go; None for a trial, which only selects. The group's result is the error that ended it, or None.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig
    from ray.train.v2.api.config import LoggingConfig

    from orchestrator.training.group import GroupTrainer, Place, bundle

    home.mkdir(parents=True, exist_ok=True)
    (home / INBOX).write_text("")
    resources = spec.resources
    trainer = GroupTrainer(
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
        scaling_config=Place(
            num_workers=resources.workers,
            use_gpu=bool(resources.gpus_per_worker),
            resources_per_worker=bundle(resources),
            group=place,
        ),
        run_config=RunConfig(
            name=home.name,
            storage_path=str(home.parent),
            failure_config=FailureConfig(max_failures=RETRIES, controller_failure_limit=RETRIES),
            checkpoint_config=CheckpointConfig(num_to_keep=worker.KEPT),
            callbacks=[_forward(home / INBOX)],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    group: Group = trainer.fit()
    return group


def train_worker(config: dict[str, Any]) -> Exception | None:
    """What each worker of the group runs. Returns what ended it before its time, None when all is well."""
    import ray.train
    import ray.train.torch

    from workloads import distributed

    spec, home = ExperimentSpec.model_validate(config["spec"]), Path(config["home"])
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    # Rank 0 is the process to be asked, and killed, when the trial falls silent.
    if hung := watch.announce(home) if rank == 0 else watch.given_up(home):
        return hung
    device = worker.take_device(spec.resources)
    work = worker.experiment(
        spec,
        Path(config["data"]),
        ray.train.torch.get_device() if spec.resources.gpus_per_worker else device,
        final=config["outcome"] is not None,
        rank=rank,
        world_size=world_size,
        agree=distributed.agree,
        stop=worker.stop_when(Path(config["stop_file"])) if rank == 0 else lambda: False,
    )
    resume = Path(config["resume"]) if config["resume"] else None
    selected = Progress.from_json(config["selected"]) if config["selected"] else None
    parts = (home.name, *worker.WRITTEN) if config["outcome"] else ()
    with Carried(Path(config["outcome"] or home), parts, reads=rank > 0):
        try:
            found = checkpoint.latest(home) or resume
            if remote.behind(home):
                found = _as_rank_0(found)
            _stream(work, spec, home, found, selected, rank)
        except (Diverged, UserError) as error:  # every rank raises alike, and would again: no case for a retry
            return error
        if work.outcome is not None and rank == 0:
            worker.write_outcome(work.outcome, Path(config["outcome"]))
    return None


def _as_rank_0(found: Path | None) -> Path | None:
    """The checkpoint that rank 0 goes on from, also where this rank's node has not seen it yet."""
    from workloads import distributed

    chosen = distributed.agree(found)
    if chosen is not None:
        try:
            bring(chosen, checkpoint.META)
        except UserError as error:
            raise RuntimeError(one_line(error)) from None  # this rank alone: the group must start anew
    return chosen


def _stream(
    work: Experiment, spec: ExperimentSpec, home: Path, found: Path | None, selected: Progress | None, rank: int
) -> None:
    """Train, report and save from the checkpoint ``found`` on.

    Ray remembers which checkpoint was last, not whether it is whole; ours tell, and the one before serves. Of a
    storage that is no folder Ray gets none: it would wait for the upload, which ours do in the background.
    """
    import ray.train

    for report in work.stream(checkpoint.read(found, spec.identity) if found else None, selected):
        saved = work.checkpoint() if report.checkpoint_due else None  # a collective: every rank takes part
        with tempfile.TemporaryDirectory() as scratch:
            handed = None
            if saved is not None and rank == 0 and remote.behind(home):
                worker.keep(saved, home / checkpoint.name(work.order))
            elif saved is not None and rank == 0:
                checkpoint.write(Path(scratch) / "checkpoint", saved)
                handed = ray.train.Checkpoint.from_directory(f"{scratch}/checkpoint")
            name = checkpoint.name(work.order) if handed is not None else None
            if report.ended and not work.final and rank == 0:
                worker.write_table(work.validation_units, home / worker.UNITS)
            ray.train.report(messages.payload(report), checkpoint=handed, checkpoint_dir_name=name)


def _forward(inbox: Path) -> Any:
    """A callback in Train's controller, which lives on the starter's node: reports go there by a file."""
    from ray.train import UserCallback

    class Forward(UserCallback):  # type: ignore[misc]
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            with inbox.open("a") as stream:
                messages.send(stream, metrics[0])

    return Forward()


def deliver(inbox: IO[str], rows: Callable[[list[Row]], None]) -> None:
    """Hand over the rows that came since the last call."""
    for payload in messages.receive(inbox):
        rows(list(messages.rows_from_json(payload["rows"])))


def _patience(session: Session) -> Callable[[], bool]:
    """Go on waiting until a stop is asked for; say once what for."""
    began, told = time.monotonic(), [False]

    def waiting() -> bool:
        if not told[0] and time.monotonic() - began > PATIENCE_SECONDS:
            told[0] = True
            session.console.say("Waiting for workers: the cluster is busy with something else")
        return not session.interrupts.asked()

    return waiting


def cause(error: BaseException) -> str:
    """The first worker's own error, without Ray's wrapping."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, first = sorted(failures.items())[0]
        inner = getattr(first, "_base_exc", None) or getattr(first, "cause", None) or first
        trace = getattr(first, "_traceback_str", "")
        text = messages.describe(inner, trace) if isinstance(inner, Exception) else one_line(inner)
        return f"worker {rank}: {text}"
    return one_line(error) if str(error) else type(error).__name__
