"""A sweep: trials by Optuna, placed by Ray Tune or in-process; the winner is settled once on test."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from orchestrator import checkpoint, preflight, provenance, records, spaces, worker
from orchestrator.console import Console, show
from orchestrator.engine import Progress
from orchestrator.errors import DONE, PARTIAL, Interrupted, RunFailed, UserError
from orchestrator.ledger import Ledger
from orchestrator.records import RunFolder
from orchestrator.runs import Follow, Options, finish
from orchestrator.search import Study, rungs
from orchestrator.session import Result, Session, adopt
from orchestrator.settings import Settings
from orchestrator.spec import ExperimentSpec, SweepSpec
from workloads.catalog import catalog
from workloads.contract import Objective


def sweep(spec: SweepSpec, settings: Settings, options: Options, console: Console) -> Result:
    """Run a sweep to its end. Raises UserError, RunFailed (all trials failed) or Interrupted."""
    preflight.services(settings, spec.resources, ray=not options.local)
    folder = records.create(
        settings.storage,
        "sweep",
        spec.workload,
        {"sweep": spec.model_dump(mode="json"), "options": vars(options)},
        provenance.command(),
    )
    return _drive(folder, spec, settings, options, console, resuming=False)


def resume(folder: RunFolder, settings: Settings, console: Console) -> Result:
    """Go on with a sweep: the same trials, the same study, the same MLflow runs."""
    spec = SweepSpec.model_validate(folder.record["spec"]["sweep"])
    options = Options(**folder.record["spec"]["options"])
    settings = adopt(settings, folder)
    if folder.status() in ("finished", "partial"):
        raise UserError(f"{folder.id} has already finished", fix="Start a new sweep")
    if not (folder.path / "study.jsonl").exists():
        raise UserError(f"{folder.id} has lost its journal, study.jsonl", fix="Restore it, or start a new sweep")
    preflight.services(settings, spec.resources, ray=not options.local)
    folder.hold()
    return _drive(folder, spec, settings, options, console, resuming=True)


def _drive(
    folder: RunFolder,
    spec: SweepSpec,
    settings: Settings,
    options: Options,
    console: Console,
    resuming: bool,
) -> Result:
    space = spaces.load(spec.workload, spec.search.space)
    objective = _objective(spec)
    spec = spec.model_copy(
        update={"plan": spec.plan.model_copy(update={"decide_at": rungs(spec.plan.epochs, spec.search.scheduler)})}
    )
    tags = {
        "orchestrator.kind": "sweep",
        "orchestrator.workload": spec.workload,
        "orchestrator.fingerprint": spec.fingerprint(),
        "orchestrator.data_fingerprint": preflight.dataset(_defaults(spec), settings.data) or "none",
    }
    params = {
        **spec.fixed,
        **{f"search.{name}": value for name, value in spec.search.model_dump(mode="json").items()},
        **spec.plan.model_dump(mode="json"),
        "seed": spec.seed,
    }
    console.say(
        f"Sweep {folder.id}: {spec.search.trials} trials of {spec.workload}, "
        f"{spec.search.sampler}, {spec.search.scheduler}"
    )
    with Session(folder, settings, console, resuming=resuming, params=params, tags=tags) as session:
        study = Study(folder.path, spec, objective, space)
        ledger = Ledger(study, session, spec)
        place = _in_process if options.local else _on_ray
        winner = place(spec, folder, settings, session, study, ledger)
        result = finish(session, winner, options.register, folder.path / "winner")
        return _settle(result, session, spec, study, ledger)


def _defaults(spec: SweepSpec) -> dict[str, Any]:
    return {**preflight.parameters(spec.workload, {}), **spec.fixed}


def _objective(spec: SweepSpec) -> Objective:
    objective = catalog()[spec.workload].load().objective
    return objective[0] if isinstance(objective, tuple) else objective


def _in_process(
    spec: SweepSpec, folder: RunFolder, settings: Settings, session: Session, study: Study, ledger: Ledger
) -> ExperimentSpec:
    device = worker.take_device(spec.resources)
    try:
        while (config := ledger.next()) is not None:
            _trial_in_process(config, settings, device, ledger)
    finally:
        ledger.close()
    winner = choose(session, spec, study, ledger)
    follow = Follow(session, winner.spec)
    complete = worker.execute(
        winner.spec,
        folder.path / "winner",
        settings.data,
        device,
        deliver=lambda report: follow.rows(list(report.rows)),
        stop=session.interrupts.asked,
        resume=winner.checkpoint,
        selected=winner.selected,
    )
    if not complete:
        raise Interrupted(f"orchestrator sweep --resume {folder.id}")
    return winner.spec


def _trial_in_process(config: dict[str, Any], settings: Settings, device: Any, ledger: Ledger) -> None:
    number, folder = config["number"], Path(config["folder"])
    try:
        spec = ExperimentSpec.model_validate(config["spec"])
        work = worker.experiment(spec, settings.data, device, final=False, stop=ledger.stopping)
        found = checkpoint.latest(folder)
        for report in work.stream(checkpoint.read(found, spec.identity) if found else None):
            if report.checkpoint_due:
                worker.save(work, folder)
            if ledger.result(number, worker.payload(report)):
                return
    except Exception as error:
        ledger.result(number, {"error": worker.describe(error)})


def _on_ray(
    spec: SweepSpec, folder: RunFolder, settings: Settings, session: Session, study: Study, ledger: Ledger
) -> ExperimentSpec:
    from orchestrator import placement
    from orchestrator.cluster import check_fit, cluster

    with cluster(settings.ray_address) as nodes:
        fitting = check_fit(nodes, spec.resources)
        slots = min(spec.search.concurrency or fitting, fitting)
        session.console.say(f"{slots} trials at once on {len(nodes)} node{'s' * (len(nodes) > 1)}")
        try:
            placement.run_trials(spec, folder, ledger, slots)
        finally:
            ledger.close()
        winner = choose(session, spec, study, ledger)
        follow = Follow(session, winner.spec)
        complete = placement.run_winner(
            winner.spec, folder.path / "winner", settings.data, winner.checkpoint, winner.selected, session, follow.rows
        )
    if not complete:
        raise Interrupted(f"orchestrator sweep --resume {folder.id}")
    return winner.spec


@dataclass(frozen=True)
class Winner:
    """What settles the sweep: its spec, and either the selection to refit or the checkpoint to test."""

    spec: ExperimentSpec
    selected: Progress | None
    checkpoint: Path | None


def choose(session: Session, spec: SweepSpec, study: Study, ledger: Ledger) -> Winner:
    """The best complete trial. Raises Interrupted when the sweep was stopped, RunFailed when there is none."""
    if session.interrupts.asked():
        raise Interrupted(f"orchestrator sweep --resume {session.folder.id}")
    best = study.best()
    if best is None:
        raise RunFailed(session.folder.id, _why_none(study), str(session.folder.log))
    session.console.say(f"Best: trial {best.number}, {study.objective.metric} {show(best.value)} on validation")
    attributes, winner = best.user_attrs, ledger.experiment(best.number, best.user_attrs["params"])
    if not spec.plan.refit:
        return Winner(winner, None, checkpoint.latest(ledger.checkpoints(best.number)))
    selected = Progress(
        epoch=attributes["epoch"],
        best_epoch=attributes["best_epoch"],
        best_value=attributes["best_value"],
        best_metrics=attributes["best_metrics"],
    )
    return Winner(winner, selected, None)


def _why_none(study: Study) -> str:
    causes = [str(t.user_attrs["cause"]) for t in study.trials if "cause" in t.user_attrs]
    if not causes:
        return "no trial ran to its end"
    commonest = max(set(causes), key=causes.count)
    return f"no trial ran to its end; {causes.count(commonest)} of {len(study.trials)}: {commonest}"


def _settle(result: Result, session: Session, spec: SweepSpec, study: Study, ledger: Ledger) -> Result:
    """Tables, plots and the exit code."""
    from orchestrator import report

    folder, trials = session.folder.path, study.trials
    failed = sum(t.state == TrialState.FAIL and not t.user_attrs.get("cut") for t in trials)
    best = study.best()
    assert best is not None
    rows = trial_rows(trials)
    report.write_trials(rows, folder)
    report.plot_sweep(study.optuna_study, study.objective, folder)
    (folder / "best.json").write_text(json.dumps({"trial": best.number, "params": best.user_attrs["params"]}, indent=1))
    if session.tracker and session.run_id:
        session.tracker.tag(
            session.folder.id,
            {"orchestrator.best_trial": str(best.number)} | {f"best.{k}": str(v) for k, v in best.params.items()},
        )
        report.log_files(session.settings, session.run_id, folder)
    for number in (t.number for t in trials):  # the winner's own folder keeps what is worth keeping
        shutil.rmtree(ledger.checkpoints(number), ignore_errors=True)
    _print_trials(session.console, rows, study)
    code = PARTIAL if failed else DONE
    seconds = ledger.train_seconds + result.train_seconds
    full = Result(
        **{
            **vars(result),
            "train_seconds": seconds,
            "device_seconds": seconds * spec.resources.devices,
            "wall_seconds": session.wall_seconds,
            "status": "partial" if failed else "finished",
            "folder": folder,
            "exit_code": code,
            "extra": {**result.extra, "trials": len(trials), "failed": failed, "best_trial": best.number,
                      "best_params": best.user_attrs["params"]},
        }
    )  # fmt: skip
    session.settle("partial" if failed else "finished", code, run_id=full.run_id, result=full.to_json())
    return full


def trial_rows(trials: list[FrozenTrial]) -> list[dict[str, Any]]:
    """One flat row a trial."""
    rows = []
    for trial in trials:
        value = trial.value if trial.state == TrialState.COMPLETE else trial.user_attrs.get("best_value")
        rows.append(
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "value": value,
                "epochs": trial.user_attrs.get("epoch"),
                "best_epoch": trial.user_attrs.get("best_epoch"),
                "train_seconds": trial.user_attrs.get("train_seconds"),
                **{f"params.{k}": v for k, v in trial.params.items()},
                "cause": trial.user_attrs.get("cause"),
            }
        )
    return rows


def _print_trials(console: Console, rows: list[dict[str, Any]], study: Study) -> None:
    sign = -1.0 if study.objective.direction == "max" else 1.0
    ranked = sorted(rows, key=lambda r: (r["state"] != "complete", sign * (r["value"] or 0.0)))[:15]
    names = sorted({name for row in rows for name in row if name.startswith("params.")})
    columns = ["trial", "state", "value", "epochs", *names]
    title = f"{study.objective.metric} on validation" + (f", best 15 of {len(rows)}" if len(rows) > 15 else "")
    console.table(
        title,
        [c.removeprefix("params.") for c in columns],
        [[row.get(name) for name in columns] for row in ranked],
    )
