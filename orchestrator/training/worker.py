"""What every process that trains does, wherever it runs: in-process, trial actor, Ray task or Train worker."""

from __future__ import annotations

import json
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.engine import Diverged, EpochReport, Progress, Row
from orchestrator.errors import UserError
from orchestrator.experiment import Experiment, Outcome
from orchestrator.spec import ExperimentSpec, Resources
from orchestrator.storage import checkpoint
from workloads.catalog import catalog
from workloads.contract import Columns, Runtime, Servable, Workload
from workloads.data.errors import DataError

if TYPE_CHECKING:
    import torch

STOP_SECONDS = 0.5
UNITS = "validation_units.parquet"
"""The selected epoch's validation values of each user, query or pair: what promotion gates compare."""

OUTCOME, TEST_UNITS, MODEL, TABLES = "outcome.json", "test_units.parquet", "model", "tables"
WRITTEN = (OUTCOME, TEST_UNITS, UNITS, MODEL, TABLES)
"""All that :func:`write_outcome` leaves in a folder."""


def experiment(
    spec: ExperimentSpec,
    data: Path,
    device: torch.device,
    *,
    final: bool = True,
    rank: int = 0,
    world_size: int = 1,
    agree: Callable[[Any], Any] = lambda value: value,
    stop: Callable[[], bool] = lambda: False,
) -> Experiment:
    """The experiment of ``spec`` on this process' device."""
    entry = catalog()[spec.workload]
    params = entry.load_params()(**spec.params)
    workload_class = entry.load()

    def build(holdout: bool) -> Workload:
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
            accumulate=spec.plan.accumulate,
            agree=agree,
        )
        return workload_class(params, runtime)

    return Experiment(build, spec.plan, spec.identity, final=final, agree=agree, stop=stop)


def execute(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    device: torch.device,
    *,
    deliver: Callable[[EpochReport], None],
    stop: Callable[[], bool] = lambda: False,
    resume: Path | None = None,
    selected: Progress | None = None,
) -> bool:
    """Exhaust :func:`reports`. Returns whether it ran to its end; False when ``stop`` ended it."""
    for report in reports(spec, folder, data, device, stop=stop, resume=resume, selected=selected):
        deliver(report)
    return outcome_of(folder) is not None


def reports(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    device: torch.device,
    *,
    stop: Callable[[], bool] = lambda: False,
    resume: Path | None = None,
    selected: Progress | None = None,
) -> Iterator[EpochReport]:
    """Run a whole experiment in this one process, with its checkpoints and, at its end, outcome below ``folder``.

    ``resume`` is a checkpoint to start from when the folder has none of its own, ``selected`` a selection that
    only wants its refit. When ``stop`` ends it there is no outcome, and a checkpoint to go on from.
    """
    if outcome_of(folder):
        return
    work = experiment(spec, data, device, stop=stop)
    start = checkpoint.latest(folder / "checkpoints") or resume
    for report in work.stream(checkpoint.read(start, spec.identity) if start else None, selected):
        if report.checkpoint_due:
            save(work, folder / "checkpoints")
        yield report
    if work.outcome is not None:
        write_outcome(work.outcome, folder)


def save(work: Experiment, folder: Path, newest: int = 2) -> Path:
    """Write the state of the last yield and drop all but the ``newest`` ones."""
    return keep(work.checkpoint(), folder / checkpoint.name(work.order), newest)


def keep(state: checkpoint.Checkpoint, folder: Path, newest: int = 2) -> Path:
    """Write a checkpoint and drop all but the ``newest`` ones beside it."""
    written = checkpoint.write(folder, state)
    checkpoint.keep(folder.parent, newest)
    return written


def stop_when(file: Path) -> Callable[[], bool]:
    """A stop signal that looks for ``file``, at most twice a second: storage may be far away."""
    looked = [0.0, False]

    def stop() -> bool:
        if time.monotonic() - looked[0] >= STOP_SECONDS:
            looked[:] = [time.monotonic(), file.exists()]
        return bool(looked[1])

    return stop


def take_device(resources: Resources) -> torch.device:
    """This process' device: the GPU it was given, or the CPU with no more threads than its share.

    Processes that share a machine share its cores: one spinning thread too many costs a factor of ten. Those that
    share a GPU get their part of its memory and no more: who needs more fails alone, not its neighbours.
    """
    import torch

    torch.set_num_threads(max(1, min(torch.get_num_threads(), int(resources.cpus_per_worker))))
    if not resources.gpus_per_worker:
        return torch.device("cpu")
    device = torch.device("cuda", torch.cuda.current_device())
    if resources.gpus_per_worker < 1:
        torch.cuda.set_per_process_memory_fraction(resources.gpus_per_worker, device)
    torch.cuda.empty_cache()  # what an earlier trial of this process held belongs to its neighbours now
    return device


def payload(report: EpochReport) -> dict[str, Any]:
    """A report as the plain dict that crosses the process border."""
    progress = report.progress
    return {
        "rows": [[row.epoch, row.time, dict(row.metrics)] for row in report.rows],
        "epoch": progress.epoch,
        "best_epoch": progress.best_epoch,
        "best_value": progress.best_value,
        "best_metrics": dict(progress.best_metrics),
        "train_seconds": progress.train_seconds,
        "ended": report.ended,
        "done": report.ended is not None,
    }


def describe(error: Exception, trace: str = "") -> str:
    """One line for what the user did or what diverged; the place in the code for everything else.

    An error that crossed a process has lost its traceback: ``trace`` is the text that came along, if any.
    """
    if isinstance(error, UserError | Diverged | DataError):
        return str(error)
    if any(base.__module__.startswith("torch") and base.__name__ == "OutOfMemoryError" for base in type(error).__mro__):
        return (
            "it does not fit into its share of the GPU's memory (--gpus-per-worker, batch_size): "
            + str(error).splitlines()[0]
        )
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    frames = frames or re.findall(r'File "([^"]+)", line (\d+)', trace)
    place = f" ({Path(frames[-1][0]).name}:{frames[-1][1]})" if frames else ""
    return f"{type(error).__name__}: {_message(error)}{place}"


def _message(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its first line only counts
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return (str(error) or "no message").splitlines()[0]


def send(inbox: IO[str], payload: Mapping[str, Any]) -> None:
    """Append a report for whoever reads the file as it grows, with :func:`receive`."""
    inbox.write(json.dumps(payload) + "\n")
    inbox.flush()


def receive(inbox: IO[str]) -> Iterator[dict[str, Any]]:
    """The whole reports that :func:`send` has written since the last call."""
    while True:
        place = inbox.tell()
        line = inbox.readline()
        if not line.endswith("\n"):  # half a line: its writer is still at it
            inbox.seek(place)
            return
        yield json.loads(line)


def rows_from_json(rows: list[Any]) -> Iterator[Row]:
    return (Row(*row) for row in rows)


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Leave the model, the test units and, last, ``outcome.json``, whose presence says that all is there."""
    export(outcome.workload.servable(), folder / MODEL)
    write_table(outcome.test.units, folder / TEST_UNITS)
    write_table(outcome.validation_units, folder / UNITS)
    for name, columns in outcome.test.tables.items():
        write_table(columns, folder / TABLES / f"{name}.parquet")
    values = {
        "epochs": outcome.epochs,
        "refitted": outcome.refitted,
        "ended": outcome.ended,
        "metrics": dict(outcome.metrics),
        "train_seconds": outcome.train_seconds,
        "time": time.time(),
    }
    partial = folder / ".outcome.json"
    partial.write_text(json.dumps(values))
    partial.replace(folder / OUTCOME)


def write_table(columns: Columns, file: Path) -> None:
    """Write named columns as Parquet; nothing where there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if columns:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(dict(columns)), file)


def outcome_of(folder: Path) -> dict[str, Any] | None:
    """What :func:`write_outcome` left, or None when the experiment has not ended."""
    file = folder / OUTCOME
    return json.loads(file.read_text()) if file.exists() else None


def export(servable: Servable, folder: Path) -> None:
    """Write a servable as plain files: ``predictor.py, weights.safetensors, config.json, example.json``."""
    from safetensors.torch import save_file

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(servable.predictor, folder / "predictor.py")
    save_file(
        {k: v.detach().to("cpu").contiguous() for k, v in servable.weights.items()},
        folder / "weights.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(dict(servable.config)))
    example = {name: column.tolist() for name, column in servable.example.items()}
    meta = {"example": example, "params": dict(servable.params), "requirements": list(servable.requirements)}
    (folder / "servable.json").write_text(json.dumps(meta))
