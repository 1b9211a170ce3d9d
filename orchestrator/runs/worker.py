"""Functions of every training process: in-process, trial actor, Ray task or Train worker."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.polling import at_intervals
from orchestrator.config import workload_loader
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.engine import checkpoint, method_results
from orchestrator.engine.checkpoint_writer import CheckpointWriter
from orchestrator.engine.experiment import Experiment, Outcome
from orchestrator.engine.loop import Diverged, EpochReport, Progress, Row
from orchestrator.errors import FAILED, UNAVAILABLE, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.registry import servable as servables
from orchestrator.runs import micro_batches, profiling, start_point
from orchestrator.runs.reports import DeviceLost, device_lost
from orchestrator.storage import disk, look_ledger, names
from orchestrator.storage.look_ledger import Look
from workloads import memory
from workloads.contract import Columns, Evaluation, Runtime, Servable, State, Workload
from workloads.predictor_sources import copy_sources, predictor_sources

if TYPE_CHECKING:
    import torch

CHECKPOINTS_KEPT = 2
"""Checkpoints kept of a trial or run: writing the newest one may be interrupted."""

STOP_SECONDS = 0.5

_trains = threading.RLock()
"""Held by the thread that trains: random numbers and the settings of PyTorch belong to the whole process."""

UNITS = names.VALIDATION_UNITS
"""Validation values of each user, query or pair at the selected epoch. Promotion gates compare them."""

OUTCOME, TEST_UNITS, MODEL, TABLES = names.OUTCOME, names.TEST_UNITS, "model", names.TABLES
WRITTEN = (OUTCOME, TEST_UNITS, UNITS, MODEL, TABLES, names.SEALED, names.LOOKS, profiling.FOLDER)
"""Files and folders that :func:`write_outcome`, :func:`write_sealed` and :func:`record_look` write."""


def experiment(
    spec: ExperimentSpec,
    data: Path,
    device: torch.device,
    *,
    final: bool = True,
    accumulate: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    broadcast: Callable[[Any], Any] = lambda value: value,
    broadcast_state: Callable[[State | None], State | None] = lambda state: state,
    stop: Callable[[], bool] = lambda: False,
    on_test_epoch: Callable[[Workload, Row, Evaluation | None], None] = lambda workload, row, evaluation: None,
    before_test: Callable[[int], None] = lambda epoch: None,
    folder: Path | None = None,
) -> Experiment:
    """The experiment of ``spec`` on this process' device.

    ``accumulate`` is the number of micro-batches; unset, the plan's, of which ``auto`` begins with 1. ``folder`` is in
    the run's folder, which has the weights that training starts from. Without it training starts from scratch.
    """
    from workloads.data.stores import here
    from workloads.precision import use_deterministic_algorithms  # imports PyTorch

    data = here(data)
    use_deterministic_algorithms(spec.plan.deterministic)
    params = workload_loader.params(spec.workload)(**spec.params)
    workload_class = workload_loader.code(spec.workload)
    if accumulate is None:
        accumulate = 1 if spec.plan.accumulate == "auto" else spec.plan.accumulate

    @method_results.exits_as_errors()
    def build(holdout: bool) -> Workload:
        if not holdout:  # what the selection has used
            memory.release(device)
        if folder is not None:
            start_point.check_data(spec, data, folder)
        runtime = Runtime(
            device=device,
            data=data,
            seed=spec.seed,
            epochs=spec.plan.epochs,
            rank=rank,
            world_size=world_size,
            holdout=holdout,
            steps_per_epoch=spec.plan.steps_per_epoch,
            precision=spec.plan.precision,
            accumulate=accumulate,
            abstention_part=spec.plan.abstention_part,
            log_every=spec.plan.log_every,
            broadcast=broadcast,
        )
        workload = workload_class(params, runtime)
        if spec.plan.init and folder is not None:
            start_point.load(workload, spec.plan.init, folder)
        return workload

    return Experiment(
        build,
        spec.plan,
        spec.identity,
        final=final,
        rank=rank,
        broadcast=broadcast,
        broadcast_state=broadcast_state,
        stop=stop,
        on_test_epoch=on_test_epoch,
        before_test=before_test,
        accumulate=accumulate if spec.plan.accumulate == "auto" else None,
    )


def builder(data: Path, device: torch.device, **group: Any) -> profiling.Build:
    """A function that builds the workload of a spec as :func:`experiment` does."""
    return lambda spec: experiment(spec, data, device, **group).build(holdout=spec.plan.refit != "only")


def reports(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    device: torch.device,
    *,
    stop: Callable[[], bool] = lambda: False,
    resume: Path | None = None,
    selected: Progress | None = None,
    look: Look | None = None,
    split: Callable[[int], None] = lambda parts: None,
) -> Iterator[EpochReport]:
    """Run a whole experiment in this process, with its checkpoints and its outcome in ``folder``.

    ``resume`` is a checkpoint to start from when the folder has none, ``selected`` a selection that only needs its
    refit. ``look`` is recorded before the test split is evaluated. ``split`` is called with each new number of
    micro-batches. ``stop`` is called after each epoch, and before the first one of a resume. When it ends the
    experiment, there is a checkpoint to continue from and no outcome. A run that diverges reports its remaining rows
    before the error.
    """
    if outcome_of(folder):
        return
    again = True
    while again:
        again = False
        accumulate = micro_batches.chosen(spec, folder)
        work = experiment(
            spec,
            data,
            device,
            accumulate=accumulate,
            stop=stop,
            on_test_epoch=partial(write_sealed, folder),
            before_test=partial(record_look, look, folder),
            folder=folder,
        )
        start = start_point.state(spec, folder, checkpoint.latest(folder / "checkpoints") or resume)
        if start is not None and stop():  # asked for while it started: nothing new is to be saved
            return
        try:
            with CheckpointWriter(folder / "checkpoints", CHECKPOINTS_KEPT) as writer:
                for report in work.stream(start, selected):
                    if report.checkpoint_due:
                        writer.save(work.checkpoint(), work.order, wait=report.ended is not None)
                    if work.ends_selection:
                        checkpoint.write(folder / "checkpoints" / start_point.SELECTION, work.snapshot())
                    yield report
            if work.outcome is not None:
                write_outcome(work.outcome, folder, accumulate)
        except Diverged as error:
            if error.rows:
                yield EpochReport(error.rows, Progress(error.rows[-1].epoch), checkpoint_due=False, ended=None)
            raise
        except Exception as error:
            again = micro_batches.increase(spec, folder, error)
            if not again:
                raise
            split(micro_batches.chosen(spec, folder))
        del work  # before it is built again, so that its memory is free
        memory.release(device)


def save(work: Experiment, folder: Path, newest: int = CHECKPOINTS_KEPT) -> Path:
    """Write a checkpoint of the last yield and remove all but the ``newest`` ones."""
    written = checkpoint.write(folder / checkpoint.name(work.order), work.checkpoint())
    checkpoint.keep(folder, newest)
    return written


def stop_when(file: Path) -> Callable[[], bool]:
    """Return a function that says whether ``file`` exists. It looks at most twice a second: storage may be slow."""
    return at_intervals(file.exists, STOP_SECONDS)


@cache
def _threads() -> int:
    """Number of PyTorch's threads before this process took a device."""
    import torch

    return torch.get_num_threads()


def take_device(resources: Resources) -> torch.device:
    """Device of this process: its GPU, or the CPU with its share of the threads.

    Processes on one machine share its cores: one spinning thread too many costs a factor of ten. Processes on one GPU
    are limited to their part of its memory, so that one that needs more fails alone. Raises DeviceLost when the GPU
    does not start: another one may.
    """
    import torch

    torch.set_num_threads(max(1, min(_threads(), int(resources.cpus_per_worker))))
    if not resources.gpus_per_worker:
        return torch.device("cpu")
    from workloads.precision import use_full_float32

    use_full_float32()
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        memory.limit_to_share(resources.gpus_per_worker, device)
        memory.release(device)
    except RuntimeError as error:
        if "no NVIDIA driver" in str(error):  # of the machine, not of one device
            raise
        raise device_lost(error) from error
    return device


@contextmanager
def own_device(resources: Resources, say: Callable[[str], None]) -> Iterator[torch.device]:
    """The device of a run in this process, as :func:`take_device`, for this thread alone.

    Another thread waits, after a line to ``say``. PyTorch then has its number of threads again, and no deterministic
    algorithms that the run has asked for: a notebook goes on. Raises UserError (exit 3) when there is no device.
    """
    import torch

    from workloads.precision import use_deterministic_algorithms

    if not _trains.acquire(blocking=False):
        say("Waiting: another run trains in this process")
        _trains.acquire()
    threads = torch.get_num_threads()
    try:
        try:
            device = take_device(resources)
        except (DeviceLost, RuntimeError) as error:
            fix = "Set --gpus-per-worker 0 to train on the CPU"
            what = "A GPU of this machine cannot be used"
            raise UserError(what, got=one_line(error), fix=fix, code=UNAVAILABLE) from error
        yield device
    finally:
        torch.set_num_threads(threads)
        use_deterministic_algorithms(False)
        _trains.release()


def write_outcome(outcome: Outcome, folder: Path, accumulate: int = 1) -> None:
    """Write the model, the test units and, last, ``outcome.json``, whose presence marks the outcome as complete.

    ``accumulate`` is the number of micro-batches. Raises UserError when ``folder`` cannot be written (exit 3) or the
    predictor cannot be read.
    """
    served = _servable(outcome.workload)
    values = {
        "epochs": outcome.epochs,
        "refitted": outcome.refitted,
        "ended": outcome.ended,
        "metrics": dict(outcome.metrics),
        "train_seconds": outcome.train_seconds,
        "accumulate": accumulate,
    }
    with disk.writing(folder):
        export(served, folder / MODEL)
        write_table(outcome.test.units, folder / TEST_UNITS)
        write_table(outcome.validation_units, folder / UNITS)
        for name, columns in outcome.test.tables.items():
            write_table(columns, folder / TABLES / f"{name}.parquet")
        disk.write_json(folder / OUTCOME, values | {"time": time.time()})


def _servable(workload: Workload) -> Servable:
    """The workload's servable. Raises UserError when it is none, or the predictor cannot be read."""
    served = method_results.servable(workload)
    try:
        if served.predictor is None:
            return served
        predictor_sources(served.predictor)
    except (OSError, ValueError, SyntaxError) as error:
        got = error.strerror if isinstance(error, OSError) else one_line(error)
        raise UserError(f"The predictor {served.predictor} cannot be read", got=got) from None
    return served


def write_sealed(folder: Path, workload: Workload, row: Row, evaluation: Evaluation | None) -> None:
    """Write the model after an epoch, its values and, last, ``outcome.json``, into a subfolder of ``folder``.

    A registered run gets a version of each such model; the last version is the run's outcome. Raises UserError as
    :func:`write_outcome` does.
    """
    target = folder / names.SEALED / f"{row.epoch:04d}"
    served = _servable(workload)
    with disk.writing(folder):
        export(served, target / MODEL)
        write_table(evaluation.units if evaluation else {}, target / UNITS)
        values = {"epochs": row.epoch, "metrics": dict(row.metrics), "time": row.time}
        disk.write_json(target / OUTCOME, values)


def record_look(look: Look | None, folder: Path, epoch: int) -> None:
    """Add a row to the ledger of looks, and the row's number and digest to ``folder``.

    Where the storage cannot be written, the reason stands in their place: the audit shows it. Raises UserError when
    ``folder`` cannot be written.
    """
    if look is None:
        return
    try:
        row = look_ledger.append(look, epoch)
        noted = {"chain": look.chain, "number": row.number, "digest": row.digest}
    except OSError as error:
        noted = {"chain": look.chain, "unrecorded": one_line(error)}
    with disk.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.append_lines(folder / names.LOOKS, [json.dumps({**noted, "epoch": epoch, "spec": look.spec}) + "\n"])


def looks_of(folder: Path) -> list[dict[str, Any]]:
    """What :func:`record_look` has noted in ``folder``, oldest first."""
    return list(disk.json_lines(folder / names.LOOKS))


def write_table(columns: Columns, file: Path) -> None:
    """Write named columns as Parquet. Does nothing without columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if columns:
        with disk.writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(dict(columns)), file)


def outcome_of(folder: Path) -> dict[str, Any] | None:
    """Contents of ``outcome.json``, or None when the experiment has not ended or the file is damaged."""
    return private_files.read_json(folder / OUTCOME)


def export(servable: Servable, folder: Path) -> None:
    """Write a servable as plain files: its source, ``weights.safetensors``, ``config.json`` and ``servable.json``.

    Weights that only training needs are in ``training.safetensors``, where there are any. Raises UserError for a
    config, parameters or tags that are not JSON.
    """
    from safetensors.torch import save_file

    from workloads.served_weights import served_weights  # imports PyTorch

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if servable.predictor:
        copy_sources(servable.predictor, folder)
    for file, tensors in ((servables.WEIGHTS, servable.weights), (servables.TRAINING, servable.training)):
        if tensors or file == servables.WEIGHTS:
            save_file(served_weights(tensors), folder / file)
    try:
        (folder / "config.json").write_text(json.dumps(dict(servable.config)))
        servables.write(servable, folder)
    except TypeError as error:
        raise UserError(
            "The Servable cannot be stored: its config, params and tags are JSON", got=one_line(error),
            fix="Return text, plain numbers, lists and dicts of them from servable", code=FAILED,
        ) from None  # fmt: skip
