"""Run one experiment in this process (``--local``) or through Ray Train, track it, and log its model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cluster import preflight
from orchestrator.config import objectives, workload_loader
from orchestrator.config.spec import WRITTEN_BY, ExperimentSpec, Resources, SweepSpec, parse
from orchestrator.console import Console
from orchestrator.engine import checkpoint
from orchestrator.engine.loop import Progress, Row
from orchestrator.errors import DONE, Interrupted, UserError, plural, unknown
from orchestrator.provenance import machine
from orchestrator.provenance import record as provenance
from orchestrator.registry import models as registry
from orchestrator.registry import servable
from orchestrator.runs import description, micro_batches, model_upload, profiling, reports, start_point, worker
from orchestrator.runs.progress_reporter import ProgressReporter
from orchestrator.runs.session import Result, Session, adopt
from orchestrator.search import trusted_spaces
from orchestrator.storage import records
from orchestrator.storage.names import SEALED, TRAIN
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.storage.usage_log import UsageLog, mean_devices
from workloads.data import skipped_images_warning

if TYPE_CHECKING:
    import torch

WORKERS = "workers"
"""Key in the record of an elastic run: its numbers of workers, in order."""

SHOWN = 3
"""Metrics of a split in the line at the end."""

READS_TEST = "Training uses the test part, as its parameters say: values on test are not those of unseen data"

KEEP_CHOICES = ("winner", "all", "none")
"""Values of ``--keep``."""


@dataclass(frozen=True)
class Options:
    """Options of a run or sweep that do not change its result."""

    local: bool = False
    register: str | None = None
    name: str | None = None
    keep: str = "winner"
    """Checkpoints to keep: after a sweep only the winner's or all trials'; after a run its own; or none."""
    trial_timeout: float | None = None
    """Seconds without a report after which a run's workers are killed."""
    profile: int | None = None
    """Steps of a run to trace before it trains."""

    @classmethod
    def recorded(cls, folder: RunFolder) -> Options:
        """The options in a record. Raises UserError if this version does not know one."""
        values = folder.record["spec"]["options"]
        if strange := values.keys() - {each.name for each in fields(cls)}:
            got = ", ".join(sorted(strange))
            raise UserError(f"{folder.id} has options that this version does not know", got=got, fix=WRITTEN_BY)
        return cls(**values)

    def __post_init__(self) -> None:
        if self.keep not in KEEP_CHOICES:
            raise unknown("word for --keep", self.keep, KEEP_CHOICES)
        if self.register is not None:
            registry.check_name(self.register)
        if self.profile is not None and not 1 <= self.profile <= 1000:
            raise UserError("--profile is not valid", got=self.profile, allowed="1 to 1000 steps")
        if self.trial_timeout is not None:
            if self.trial_timeout <= 0:
                raise UserError(
                    "--trial-timeout is not valid", got=f"{self.trial_timeout:g}", allowed="seconds above 0"
                )
            if self.local:
                raise UserError(
                    "--trial-timeout kills the process of a run, and --local has only its own",
                    fix="Leave out --local, or set local=False in a notebook",
                )


def run(spec: ExperimentSpec, settings: Settings, options: Options, console: Console) -> Result:
    """Run ``spec`` to its end and log its model. Raises UserError, RunFailed or Interrupted."""
    preflight.services(
        settings, spec.resources, ray=not options.local, workload=spec.workload, register=options.register
    )
    folder = create(spec, settings, options)
    with folder.guarded():
        return _drive(folder, spec, settings, options, console, spec.resources, resuming=False)


def resume(
    folder: RunFolder, settings: Settings, console: Console, resources: Mapping[str, Any] | None = None
) -> Result:
    """Continue a run from its last checkpoint with its recorded options, but for the ``resources`` that are given."""
    folder = folder.fetch()
    spec = parse(ExperimentSpec, folder.record["spec"]["experiment"], folder.id)
    options = Options.recorded(folder)
    trusted_spaces.check(spec.workload, settings.home, folder.id, "workload")
    settings = adopt(settings, folder)
    if folder.status() == "finished":
        raise UserError(f"{folder.id} has already finished", fix="Start a new run")
    elsewhere = bool(settings.ray_address) and not options.local
    preflight.dataset(spec.workload, spec.params, settings.data, elsewhere=elsewhere)
    devices = preflight.resumed_resources(
        folder.record, spec.resources, resources or {}, settings, console.say, local=options.local
    )
    if devices != spec.resources:
        preflight.limits(spec.workload, spec.params, devices, spec.plan)
        preflight.batch(spec.params, devices, spec.plan, resuming=True)
    preflight.services(settings, devices, ray=not options.local, workload=spec.workload, register=options.register)
    point = _resume_point(folder, spec)
    folder.acquire()
    console.say(f"Resuming {folder.id} from {point}")
    with folder.guarded():
        return _drive(folder, spec, settings, options, console, devices, resuming=True)


def _resume_point(folder: RunFolder, spec: ExperimentSpec) -> str:
    """Where the run continues, in words. Verifies its checkpoint; raises UserError."""
    latest = checkpoint.latest(folder.checkpoints) or checkpoint.latest(folder.path / TRAIN)
    if latest is None:
        return "the beginning: it has no checkpoint"
    saved = checkpoint.read(latest, spec.identity)
    if selected := saved.state.get("selected"):
        return f"its checkpoint at refit epoch {saved.epoch} of {selected['best_epoch']}"
    return f"its checkpoint at epoch {saved.epoch} of {spec.plan.epochs}"


def create(spec: ExperimentSpec | SweepSpec, settings: Settings, options: Options, **more: Any) -> RunFolder:
    """Create the folder of a new run or sweep. ``more`` is recorded with its spec and options."""
    kind: records.Kind = "run" if isinstance(spec, ExperimentSpec) else "sweep"
    recorded = {
        "experiment" if kind == "run" else kind: spec.model_dump(mode="json"),
        "options": vars(options),
        **more,
        "cluster": bool(settings.ray_address) and not options.local,
    }
    command = provenance.command()
    return records.create(settings.storage, kind, spec.workload, recorded, command, options.name, **settings.recorded())


def prepare(
    folder: RunFolder,
    spec: ExperimentSpec | SweepSpec,
    params: Mapping[str, Any],
    settings: Settings,
    options: Options,
    say: Callable[[str], None],
    headline: str,
    note: str | None = None,
) -> dict[str, str]:
    """Check the data of a run or sweep, and copy and record what it starts from. Returns its tags in MLflow.

    ``params`` has the parameters of the data.
    """
    kind = folder.record["kind"]
    elsewhere = bool(settings.ray_address) and not options.local
    with folder.renewing():  # a large dataset takes minutes
        fingerprint = preflight.dataset(spec.workload, params, settings.data, elsewhere=elsewhere)
        inputs = preflight.input_files(spec.workload, params)
        start_point.prepare(folder.path, spec, settings)
        start_point.record_data(folder.path, params, fingerprint, settings.data, elsewhere=elsewhere)
    selected_by = [[one.metric, one.direction] for one in objectives.of_plan(spec.workload, spec.plan)]
    folder.update(objectives=selected_by, **({"inputs": inputs} if inputs else {}))
    missing = skipped_images_warning(params, settings.data) if fingerprint and not elsewhere else None
    warning = start_point.warning(folder.path, spec, fingerprint, params)
    reads_test = READS_TEST if workload_loader.reads_test(spec.workload, params) else None
    on_this_cpu = not elsewhere and not spec.resources.gpus_per_worker
    emulated = on_this_cpu and spec.plan.precision == "bf16" and not machine.has_bf16_instructions()
    slow = "This CPU has no instructions for bf16: matrix products are faster in precision=fp32" if emulated else None
    for line in filter(None, (headline, start_point.sentence(spec), warning, reads_test, note, missing, slow)):
        say(line)
    return {
        "orchestrator.kind": kind,
        "orchestrator.workload": spec.workload,
        "orchestrator.fingerprint": spec.fingerprint(),
        "orchestrator.data_fingerprint": fingerprint or "none",
        **({"orchestrator.reads_test": "true"} if reads_test else {}),
        **start_point.tags(spec, warning is not None),
    }


def _drive(
    folder: RunFolder,
    spec: ExperimentSpec,
    settings: Settings,
    options: Options,
    console: Console,
    resources: Resources,
    resuming: bool,
) -> Result:
    headline = f"Run {folder.id}: {spec.workload} on {resources.text(options.local)}"
    tags = prepare(folder, spec, spec.params, settings, options, console.say, headline)
    tags["orchestrator.repeat"] = spec.command()
    name = description.name(folder.id, spec.workload, description.run_settings(spec))
    params = flat_params(spec)  # with the recorded resources: MLflow's parameters cannot change
    summary = description.run_summary(spec)
    spec = spec.model_copy(update={"resources": resources})
    with Session(
        folder, settings, console, resuming=resuming, params=params, tags=tags, name=name, summary=summary
    ) as session:
        session.trained_on(folder.id, spec.params)
        progress = ProgressReporter(session, spec)
        usage_log = UsageLog(folder.path)
        session.publisher.set_source(partial(progress.current_status, usage_log))
        console.view(progress.view)
        if options.local:
            with worker.own_device(spec.resources, console.say) as device, usage_log.holding("run", spec.resources):
                complete = in_process(spec, folder.path, session, progress.rows, device=device, profile=options.profile)
        else:
            from orchestrator.runs.group_driver import train

            elastic = spec.resources.min_workers is not None
            holding = partial(_elastic, session, usage_log) if elastic else partial(usage_log.holding, "run")
            complete = train(spec, session, progress.rows, holding, options.trial_timeout, options.profile)
        if not complete:
            raise Interrupted(folder.resume_command)
        result = finish(session, spec, options.register, folder.path)
        if session.tracker:
            session.tracker.files(folder.id, profiling.files(folder.path))
            note = description.of_run(folder.id, spec, folder.path, options.register)
            session.tracker.tag(folder.id, {description.NOTE: note})
        if options.keep == "none":
            discard_checkpoints(session, folder.path)
        session.set_end("finished", DONE, run_id=result.run_id, result=result.to_json())
    return result


@contextmanager
def _elastic(session: Session, usage_log: UsageLog, held: Resources) -> Iterator[None]:
    """Note the workers that an elastic run has now in its usage log, record and tags."""
    seen = [*session.folder.record.get(WORKERS, []), held.workers]
    session.folder.update(**{WORKERS: seen})
    session.console.say(f"Training with {plural(held.workers, 'worker')}")
    if session.tracker:
        session.tracker.tag(session.folder.id, {"orchestrator.workers": ",".join(map(str, seen))})
    with usage_log.holding("run", held):
        yield


def in_process(
    spec: ExperimentSpec,
    folder: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    *,
    device: torch.device,
    resume: Path | None = None,
    selected: Progress | None = None,
    profile: int | None = None,
) -> bool:
    """Run ``spec`` in this process with its outcome in ``folder``. Returns False when it was stopped.

    ``profile`` steps are traced before it begins. Raises UserError, and RunFailed for every other error.
    """
    data = session.settings.data
    try:
        while profile and not profiling.files(folder):
            try:
                build = worker.builder(data, device, accumulate=micro_batches.chosen(spec, folder))
                profiling.trace(build, spec, profile, device, folder)
                session.console.say(profiling.sentence(folder) or "")
            except Exception as error:
                if not micro_batches.increase(spec, folder, error):
                    raise
                session.split_batch(micro_batches.chosen(spec, folder))
        for report in worker.reports(
            spec,
            folder,
            data,
            device,
            stop=session.interrupts.stop_requested,
            resume=resume,
            selected=selected,
            look=session.look(spec),
            split=session.split_batch,
        ):
            rows(list(report.rows))
    except UserError:
        raise
    except Exception as error:
        raise reports.failed(session.folder, error) from error
    return worker.outcome_of(folder) is not None


def discard_checkpoints(session: Session, folder: Path) -> None:
    """Remove the checkpoints of a training in ``folder``. Its model stays."""
    for path in (folder / "checkpoints", folder / TRAIN, folder / SEALED):
        session.discard(path)


def finish(
    session: Session,
    spec: ExperimentSpec,
    register: str | None,
    folder: Path,
    before: int = 0,
    selected: Progress | None = None,
) -> Result:
    """Log the outcome in ``folder``: test metrics, record, and the model, registered as ``register``.

    ``before`` and ``selected`` as in :class:`~orchestrator.runs.progress_reporter.ProgressReporter`.
    """
    outcome = worker.outcome_of(folder)
    assert outcome is not None
    if selected:  # a repeat of the winner may have ended after the refit
        outcome["metrics"] |= selected.best_metrics
    devices = mean_devices(session.folder) if spec.resources.min_workers else spec.resources.devices
    tracker = session.tracker
    console = session.console
    key = session.folder.id
    model_uri: str | None = str(folder / worker.MODEL)
    version = None
    provenance.write_spec(folder / provenance.SPEC, spec.model_dump(mode="json"))  # for a sweep, its winner's spec
    untouched = outcome["epochs"] == 0  # only pretrained weights can be selected before any training
    if tracker:
        test = {name: value for name, value in outcome["metrics"].items() if name.startswith("test/")}
        step = (outcome["epochs"] or min(before, 1)) + before  # step 0 of a later winner is taken
        tracker.log(key, [Row(step, outcome["time"], test)])
        tracker.tag(
            key,
            {
                "orchestrator.refit": str(spec.plan.refit).lower(),
                **({micro_batches.TAG: str(outcome["accumulate"])} if spec.plan.accumulate == "auto" else {}),
                "orchestrator.epochs": str(outcome["epochs"]),
                "orchestrator.device_seconds": f"{outcome['train_seconds'] * devices:.1f}",
                "orchestrator.looks": json.dumps(worker.looks_of(folder)),
            }
            # The tag of an earlier winner is replaced.
            | ({"orchestrator.untouched": str(untouched).lower()} if untouched or before else {}),
        )
        if not (folder / worker.MODEL / servable.PREDICTOR).exists():
            done = f"logged, or registered as {register}" if register else "logged"
            console.say(f"No class Predictor: the weights stay in the run's folder, and no model is {done}")
        elif logged := model_upload.deliver(session, folder, register):
            model_uri = logged.uri
            version = logged.version
    train_seconds = float(outcome["train_seconds"])
    if spec.plan.accumulate == "auto":
        session.folder.update(accumulate=outcome["accumulate"])
        count = outcome["accumulate"]
        console.say(f"accumulate=auto: {count} micro-batch{'es' * (count > 1)} for each batch")
    _say_metrics(console, spec, outcome)
    if untouched:
        console.say(
            "No trained epoch beats the pretrained weights (epoch 0) on validation. "
            "The model keeps the pretrained weights"
        )
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
        device_seconds=train_seconds * devices,
        folder=session.folder.path,
        extra={"epochs": outcome["epochs"], "registered_version": version},
    )


def _say_metrics(console: Console, spec: ExperimentSpec, outcome: dict[str, Any]) -> None:
    """Print one line for validation and one for test: the objectives, then the first other metrics."""
    model = "refitted on train + validation" if outcome["refitted"] else "selected on validation"
    head = [objective.metric for objective in objectives.of_plan(spec.workload, spec.plan)]
    for split in ("validation", "test"):
        values = {k.partition("/")[2]: v for k, v in outcome["metrics"].items() if k.startswith(f"{split}/")}
        names = [name for name in dict.fromkeys([*head, *values]) if name in values]
        if names:
            text = "  ".join(f"{name} {values[name]:.4f}" for name in names[: max(SHOWN, len(head))])
            about = "best epoch" if split == "validation" else f"{plural(outcome['epochs'], 'epoch')}, {model}"
            console.say(f"{split}: {text}  ({about})")


def flat_params(spec: ExperimentSpec) -> dict[str, Any]:
    """Parameters, plan, resources and seed as one flat mapping. The names do not collide."""
    plan = spec.plan.model_dump(mode="json", exclude={"decide_at"})
    resources = spec.resources.model_dump(mode="json")
    return {**spec.params, **plan, **resources, "seed": spec.seed}
