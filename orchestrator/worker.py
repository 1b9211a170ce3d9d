"""What every process that trains does, wherever it runs: in-process, trial actor, Ray task or Train worker."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator import checkpoint
from orchestrator.engine import Diverged, EpochReport, Progress, Row
from orchestrator.errors import UserError
from orchestrator.experiment import Experiment, Outcome
from orchestrator.spec import ExperimentSpec, Resources
from workloads.catalog import catalog
from workloads.contract import Runtime, Servable, Workload
from workloads.data.errors import DataError

if TYPE_CHECKING:
    import torch

STOP_SECONDS = 0.5


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
    """Run a whole experiment in this one process, with its checkpoints and outcome below ``folder``.

    ``resume`` is a checkpoint to start from when the folder has none of its own, ``selected`` a selection that
    only wants its refit. Returns whether it ran to its
    end; False when ``stop`` ended it, which leaves a checkpoint to go on from.
    """
    if outcome_of(folder):
        return True
    work = experiment(spec, data, device, stop=stop)
    start = checkpoint.latest(folder / "checkpoints") or resume
    for report in work.stream(checkpoint.read(start, spec.identity) if start else None, selected):
        if report.checkpoint_due:
            save(work, folder / "checkpoints")
        deliver(report)
    if work.outcome is None:
        return False
    write_outcome(work.outcome, folder)
    return True


def save(work: Experiment, folder: Path) -> Path:
    """Write the state of the last yield and drop what is older than the one before."""
    written = checkpoint.write(folder / checkpoint.name(work.order), work.checkpoint())
    checkpoint.keep(folder)
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

    Processes that share a machine share its cores: one spinning thread too many costs a factor of ten.
    """
    import torch

    torch.set_num_threads(max(1, min(torch.get_num_threads(), int(resources.cpus_per_worker))))
    return torch.device("cuda", torch.cuda.current_device()) if resources.gpus_per_worker else torch.device("cpu")


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


def describe(error: Exception) -> str:
    """One line for what the user did or what diverged; the place in the code for everything else."""
    if isinstance(error, UserError | Diverged | DataError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def send(inbox: IO[str], payload: Mapping[str, Any]) -> None:
    """Append a report's rows for the driver, which reads the file as it grows."""
    inbox.write(json.dumps(payload["rows"]) + "\n")
    inbox.flush()


def rows_from_json(rows: list[Any]) -> Iterator[Row]:
    return (Row(*row) for row in rows)


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Leave the model, the test units and, last, ``outcome.json``, whose presence says that all is there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    export(outcome.workload.servable(), folder / "model")
    if outcome.test.units:
        pq.write_table(pa.table(dict(outcome.test.units)), folder / "test_units.parquet")
    tables = folder / "tables"
    for name, columns in outcome.test.tables.items():
        tables.mkdir(exist_ok=True)
        pq.write_table(pa.table(dict(columns)), tables / f"{name}.parquet")
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
    partial.replace(folder / "outcome.json")


def outcome_of(folder: Path) -> dict[str, Any] | None:
    """What :func:`write_outcome` left, or None when the experiment has not ended."""
    file = folder / "outcome.json"
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
