"""The command line's arguments and options that several verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Words = Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD] key=value ...", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", help="YAML file; key=value words go on top of it.")]
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="A source's settings (`workloads NAME`); file and words go on top."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.  [default: 0]")]
Local = Annotated[bool, typer.Option("--local", help="In this process, without Ray.")]
Name = Annotated[str | None, typer.Option("--name", help="Its id.  [default: workload, time and four digits]")]
Register = Annotated[str | None, typer.Option("--register", metavar="NAME", help="Register the model under NAME.")]
Json = Annotated[bool, typer.Option("--json", help="One machine-readable line, last on standard output.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="latest|ID", help="Go on with an interrupted one.")]
Workers = Annotated[
    str | None,
    typer.Option("--workers", metavar="N|MIN:MAX", help="Processes that train one model (DDP); elastic.  [default: 1]"),
]
Gpus = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", help="A fraction only with one worker.  [default: 1 if there is one]"),
]
Cpus = Annotated[float | None, typer.Option("--cpus-per-worker", help="CPUs of a worker.")]
MaxGpus = Annotated[int | None, typer.Option("--max-gpus", help="GPUs held at once, at most.  [default: all that fit]")]
Tracking = Annotated[
    str | None,
    typer.Option("--tracking", metavar="URI|none", help="MLflow store.  [default: the embedded one]"),
]
Experiment = Annotated[str | None, typer.Option("--experiment", help="MLflow experiment.  [default: the workload]")]
Storage = Annotated[str | None, typer.Option("--storage", help="Where checkpoints, logs and results go.")]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help="Ray cluster.  [default: a local one]")]

Reference = Annotated[str, typer.Argument(metavar="ID", help="Id of a run, a sweep or a job, or latest.")]
Address = Annotated[str | None, typer.Option("--address", help="Dashboard, for jobs.")]
