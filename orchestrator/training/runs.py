"""One experiment, driven: in this process (``--local``) or through Ray Train, tracked, and its model logged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import objectives, preflight
from orchestrator.console import Console
from orchestrator.engine import Progress, Row
from orchestrator.errors import DONE, Interrupted, UserError, unknown
from orchestrator.provenance import record as provenance
from orchestrator.session import Result, Session, adopt
from orchestrator.settings import Settings
from orchestrator.spec import ExperimentSpec
from orchestrator.storage import records
from orchestrator.storage.accounts import Book
from orchestrator.storage.names import HISTORY
from orchestrator.storage.records import RunFolder
from orchestrator.training import delivery, messages, worker

if TYPE_CHECKING:
    import torch

SHOWN = 3
"""Metrics of a split in its line at the end."""


@dataclass(frozen=True)
class Options:
    """How to run, beside what to run."""

    local: bool = False
    register: str | None = None
    name: str | None = None
    keep: str = "winner"
    """Which checkpoints stay after a sweep: the winner's alone, or every trial's."""

    def __post_init__(self) -> None:
        if self.keep not in ("winner", "all"):
            raise unknown("word for --keep", self.keep, ("winner", "all"))


def run(spec: ExperimentSpec, settings: Settings, options: Options, console: Console) -> Result:
    """Run ``spec`` to its end and log its model. Raises UserError, RunFailed or Interrupted."""
    preflight.services(settings, spec.resources, ray=not options.local)
    folder = records.create(
        settings.storage,
        "run",
        spec.workload,
        {"experiment": spec.model_dump(mode="json"), "options": vars(options)},
        provenance.command(),
        options.name,
    )
    return _drive(folder, spec, settings, options, console, resuming=False)


def resume(folder: RunFolder, settings: Settings, console: Console) -> Result:
    """Go on with a run from its last checkpoint, as it was asked for."""
    folder = folder.fetch()
    spec = ExperimentSpec.model_validate(folder.record["spec"]["experiment"])
    options = Options(**folder.record["spec"]["options"])
    settings = adopt(settings, folder)
    if folder.status() == "finished":
        raise UserError(f"{folder.id} has already finished", fix="Start a new run")
    preflight.dataset(spec.params, settings.data)
    preflight.services(settings, spec.resources, ray=not options.local)
    _check_checkpoint(folder, spec)
    folder.hold()
    return _drive(folder, spec, settings, options, console, resuming=True)


def _check_checkpoint(folder: RunFolder, spec: ExperimentSpec) -> None:
    from orchestrator.storage import checkpoint

    found = checkpoint.latest(folder.checkpoints) or checkpoint.latest(folder.path / "train")
    if found is not None:
        checkpoint.read(found, spec.identity)


def _drive(
    folder: RunFolder,
    spec: ExperimentSpec,
    settings: Settings,
    options: Options,
    console: Console,
    resuming: bool,
) -> Result:
    fingerprint = preflight.dataset(spec.params, settings.data)
    tags = {
        "orchestrator.kind": "run",
        "orchestrator.workload": spec.workload,
        "orchestrator.fingerprint": spec.fingerprint(),
        "orchestrator.data_fingerprint": fingerprint or "none",
        "orchestrator.repeat": spec.command(),
    }
    folder.update(objectives=[[o.metric, o.direction] for o in objectives.of(spec.workload, spec.plan)])
    console.say(f"Run {folder.id}: {spec.workload} on {_devices(spec, options.local)}")
    with Session(folder, settings, console, resuming=resuming, params=flat_params(spec), tags=tags) as session:
        session.trained_on(folder.id, spec.params)
        follow = Follow(session, spec)
        with Book(folder.path).holding("run", spec.resources):
            if options.local:
                device = worker.take_device(spec.resources)
                complete = in_process(spec, folder.path, device, session, follow.rows)
            else:
                from orchestrator.training import train

                complete = train.train(spec, folder, settings, session, follow.rows)
        if not complete:
            raise Interrupted(f"orchestrator run --resume {folder.id}")
        result = finish(session, spec, options.register, folder.path)
        session.settle("finished", DONE, run_id=result.run_id, result=result.to_json())
    return result


def in_process(
    spec: ExperimentSpec,
    folder: Path,
    device: torch.device,
    session: Session,
    rows: Callable[[list[Row]], None],
    *,
    resume: Path | None = None,
    selected: Progress | None = None,
) -> bool:
    """Run ``spec`` to its outcome below ``folder``, as :func:`worker.reports`; False when it was stopped.

    Raises UserError, and RunFailed for everything else that ends it.
    """
    try:
        return worker.execute(
            spec,
            folder,
            session.settings.data,
            device,
            deliver=lambda report: rows(list(report.rows)),
            stop=session.interrupts.asked,
            resume=resume,
            selected=selected,
        )
    except UserError:
        raise
    except Exception as error:
        raise messages.failed(session.folder, error) from error


class Follow:
    """Rows as they come: to the tracker and to the console."""

    def __init__(self, session: Session, spec: ExperimentSpec) -> None:
        self._session, self._spec = session, spec
        self._shown = ("loss", *(f"/{objective.metric}" for objective in objectives.of(spec.workload, spec.plan)))

    def rows(self, rows: list[Row]) -> None:
        if not rows:
            return
        if self._session.tracker:
            self._session.tracker.log(self._session.folder.id, rows)
        with (self._session.folder.path / HISTORY).open("a") as stream:
            for row in rows:
                stream.write(json.dumps({"epoch": row.epoch, "time": row.time, **row.metrics}) + "\n")
        last = rows[-1]
        refitting = any(name.startswith("refit/") for name in last.metrics)
        shown = {name: value for name, value in last.metrics.items() if name.endswith(self._shown)}
        detail = "  ".join(f"{name} {value:.4f}" for name, value in shown.items())
        self._session.console.progress(
            last.epoch, self._spec.plan.epochs, "refit epoch" if refitting else "epoch", detail
        )


def finish(session: Session, spec: ExperimentSpec, register: str | None, folder: Path) -> Result:
    """Log the outcome in ``folder``: test metrics, record, model; register it under ``register``."""
    outcome = worker.outcome_of(folder)
    assert outcome is not None
    tracker, console = session.tracker, session.console
    key = session.folder.id
    model_uri: str | None = str(folder / worker.MODEL)
    version = None
    if tracker:
        test = {name: value for name, value in outcome["metrics"].items() if name.startswith("test/")}
        tracker.log(key, [Row(outcome["epochs"], outcome["time"], test)])
        tracker.tag(
            key,
            {
                "orchestrator.refit": str(spec.plan.refit).lower(),
                "orchestrator.epochs": str(outcome["epochs"]),
                "orchestrator.device_seconds": f"{outcome['train_seconds'] * spec.resources.devices:.1f}",
            },
        )
        provenance.write_spec(folder / provenance.SPEC, spec.model_dump(mode="json"))  # of a sweep, its winner's
        if logged := delivery.deliver(session, folder, register):
            model_uri, version = logged.uri, logged.version
    train_seconds = float(outcome["train_seconds"])
    _say_metrics(console, spec, outcome)
    if register and version:
        console.say(f"Registered: models:/{register}/{version}")
    return Result(
        id=session.folder.id,
        run_id=session.run_id,
        status="finished",
        metrics=outcome["metrics"],
        model_uri=model_uri,
        wall_seconds=session.wall_seconds,
        train_seconds=train_seconds,
        device_seconds=train_seconds * spec.resources.devices,
        folder=session.folder.path,
        extra={"epochs": outcome["epochs"], "registered_version": version},
    )


def _say_metrics(console: Console, spec: ExperimentSpec, outcome: dict[str, Any]) -> None:
    """The two lines a user looks for: the objectives and, beside them, what else comes first."""
    model = "refitted on train + validation" if outcome["refitted"] else "selected on validation"
    head = [objective.metric for objective in objectives.of(spec.workload, spec.plan)]
    for split in ("validation", "test"):
        values = {k.partition("/")[2]: v for k, v in outcome["metrics"].items() if k.startswith(f"{split}/")}
        names = [name for name in dict.fromkeys([*head, *values]) if name in values]
        if names:
            text = "  ".join(f"{name} {values[name]:.4f}" for name in names[: max(SHOWN, len(head))])
            about = "best epoch" if split == "validation" else f"{outcome['epochs']} epochs, {model}"
            console.say(f"{split}: {text}  ({about})")


def flat_params(spec: ExperimentSpec) -> dict[str, Any]:
    """Parameters, plan and seed as one flat mapping; the names never collide."""
    plan = spec.plan.model_dump(mode="json", exclude={"decide_at"})
    resources = spec.resources.model_dump(mode="json")
    return {**spec.params, **plan, **resources, "seed": spec.seed}


def _devices(spec: ExperimentSpec, local: bool) -> str:
    r = spec.resources
    each = f"{r.gpus_per_worker:g} GPU" if r.gpus_per_worker else f"{r.cpus_per_worker:g} CPU"
    return f"{each}, in this process" if local else f"{r.workers} worker{'s' * (r.workers > 1)} of {each}"
