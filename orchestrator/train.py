"""An experiment on Ray Train: one worker or a DDP group. The only caller of ``ray.train.report``."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator import checkpoint, worker
from orchestrator.cluster import check_fit, cluster
from orchestrator.engine import Diverged, Row
from orchestrator.errors import RunFailed, UserError
from orchestrator.experiment import Experiment
from orchestrator.records import RunFolder
from orchestrator.session import Session
from orchestrator.settings import Settings
from orchestrator.spec import ExperimentSpec

RETRIES = 3
"""Lost processes or nodes that a run survives; each goes on from the last checkpoint."""

FAILURE = "failure.txt"
NAME = "train"
"""Ray's folder below the run's own: a Train run's name is its resume key."""


def train(
    spec: ExperimentSpec,
    folder: RunFolder,
    settings: Settings,
    session: Session,
    rows: Callable[[list[Row]], None],
) -> bool:
    """Run ``spec`` on a Ray Train group, handing rows to ``rows`` as they arrive.

    Returns False when it was stopped before its end. Raises RunFailed when a worker did.
    """
    if worker.outcome_of(folder.path):
        return True
    with cluster(settings.ray_address) as nodes:
        check_fit(nodes, spec.resources)
        return _fit(spec, folder, settings, session, rows)


def _fit(
    spec: ExperimentSpec,
    folder: RunFolder,
    settings: Settings,
    session: Session,
    rows: Callable[[list[Row]], None],
) -> bool:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    inbox = folder.path / "rows.jsonl"
    inbox.touch()
    (folder.path / FAILURE).unlink(missing_ok=True)
    resources = spec.resources
    need = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        need["GPU"] = resources.gpus_per_worker
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={
            "spec": spec.model_dump(mode="json"),
            "folder": str(folder.path),
            "data": str(settings.data),
        },
        scaling_config=ScalingConfig(
            num_workers=resources.workers, use_gpu=bool(resources.gpus_per_worker), resources_per_worker=need
        ),
        run_config=RunConfig(
            name=NAME,
            storage_path=str(folder.path),
            failure_config=FailureConfig(max_failures=RETRIES, controller_failure_limit=RETRIES),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            callbacks=[_forward(inbox)],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    failure: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            failure.append(error)

    # In a thread: fit() blocks, and on the main thread it would take over Ctrl-C.
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    thread.start()
    with inbox.open() as stream:
        while thread.is_alive():
            thread.join(0.2)
            session.interrupts.asked()
            drain(stream, rows)
        drain(stream, rows)
    if failure:
        raise RunFailed(folder.id, _cause(failure[0]), str(folder.log)) from failure[0]
    if (folder.path / FAILURE).exists():
        raise RunFailed(folder.id, (folder.path / FAILURE).read_text(), str(folder.log))
    return worker.outcome_of(folder.path) is not None


def train_worker(config: dict[str, Any]) -> None:
    """What each worker of the group runs."""
    import ray.train
    import ray.train.torch

    from workloads import distributed

    spec = ExperimentSpec.model_validate(config["spec"])
    folder = Path(config["folder"])
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    device = worker.take_device(spec.resources)
    work = worker.experiment(
        spec,
        Path(config["data"]),
        ray.train.torch.get_device() if spec.resources.gpus_per_worker else device,
        rank=rank,
        world_size=world_size,
        agree=distributed.agree,
        stop=worker.stop_when(folder / "stop") if rank == 0 else lambda: False,
    )
    try:
        _stream(work, spec, folder, rank)
    except (Diverged, UserError) as error:  # every rank raises alike, and would again: no case for a retry
        if rank == 0:
            (folder / FAILURE).write_text(str(error))
        return
    if work.outcome is not None and rank == 0:
        worker.write_outcome(work.outcome, folder)


def _stream(work: Experiment, spec: ExperimentSpec, folder: Path, rank: int) -> None:
    import ray.train

    found = last_checkpoint(folder)
    for report in work.stream(checkpoint.read(found, spec.identity) if found else None):
        saved = work.checkpoint() if report.checkpoint_due else None  # a collective: every rank takes part
        with tempfile.TemporaryDirectory() as scratch:
            handed = None
            if saved is not None and rank == 0:
                checkpoint.write(Path(scratch) / "checkpoint", saved)
                handed = ray.train.Checkpoint.from_directory(f"{scratch}/checkpoint")
            name = checkpoint.name(work.order) if saved is not None else None
            ray.train.report(worker.payload(report), checkpoint=handed, checkpoint_dir_name=name)


def last_checkpoint(folder: Path) -> Path | None:
    """Where a run on Train would go on from. Raises UserError when there are checkpoints but none is intact.

    Ray remembers which checkpoint was last, not whether it is whole; ours tell, and the one before serves.
    """
    return checkpoint.latest(folder / NAME)


def _forward(inbox: Path) -> Any:
    """A callback in Train's controller, which lives on the driver's node: rows go to the driver by a file."""
    from ray.train import UserCallback

    class Forward(UserCallback):  # type: ignore[misc]
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            with inbox.open("a") as stream:
                worker.send(stream, metrics[0])

    return Forward()


def drain(stream: Any, rows: Callable[[list[Row]], None]) -> None:
    """Hand over the whole lines that :func:`orchestrator.worker.send` has written since the last call."""
    while True:
        place = stream.tell()
        line = stream.readline()
        if not line.endswith("\n"):  # half a line: its writer is still at it
            stream.seek(place)
            return
        rows(list(worker.rows_from_json(json.loads(line))))


def _cause(error: BaseException) -> str:
    """The first worker's own error, without Ray's wrapping."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, first = sorted(failures.items())[0]
        inner = getattr(first, "cause", None) or first
        text = worker.describe(inner) if isinstance(inner, Exception) else str(inner)
        return f"worker {rank}: {text}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
