"""The end of a sweep: select the winner, write tables and pages, set the exit code."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import show
from orchestrator.engine import checkpoint
from orchestrator.engine.loop import Progress, Row
from orchestrator.errors import DONE, PARTIAL, Interrupted, RunFailed
from orchestrator.report import markdown, trials
from orchestrator.runs import description, micro_batches, worker
from orchestrator.runs.driver import Options, discard_checkpoints
from orchestrator.runs.session import Result, Session
from orchestrator.search import curves, members, winners
from orchestrator.search.pbt import Population
from orchestrator.search.ranking import front, repeats, seed_results
from orchestrator.search.selection import Selection
from orchestrator.search.study import Study
from orchestrator.search.winners import WINNER
from orchestrator.storage import commands, sync_state
from orchestrator.storage.names import HISTORY, TRAIN
from orchestrator.storage.records import Status
from orchestrator.sweeps.failure_limit import FailureLimit
from orchestrator.sweeps.trial_manager import TrialManager
from orchestrator.sweeps.trial_runs import TrialRuns

SHOWN = 15
"""Rows of the table at the end."""


@dataclass(frozen=True)
class Winner:
    """The winner's spec, and either the selection to refit or the checkpoint to test.

    ``before`` is the MLflow step of its epoch 0 (see :mod:`orchestrator.search.winners`), ``rows`` are those of its
    trial, of the first seed.
    """

    spec: ExperimentSpec
    before: int
    rows: Sequence[Row]
    selected: Progress | None = None
    checkpoint: Path | None = None


def select_winner(session: Session, spec: SweepSpec, study: Study, manager: TrialManager) -> Winner:
    """The best complete trial.

    Raises Interrupted when the sweep was stopped, UserError when a trial's error concerns all of them, and RunFailed
    when no trial is complete or too many failed.
    """
    if manager.refusal:
        raise manager.refusal
    if session.interrupts.stop_requested():
        raise Interrupted(commands.for_run(session.folder.path, "sweep --resume"))
    if manager.failures.is_reached() and (study.unfinished() or not study.exhausted()):
        raise RunFailed(session.folder.id, _too_many(manager.failures, session.folder.path), str(session.folder.log))
    best = study.winner()
    if best is None:
        raise RunFailed(session.folder.id, _why_none(study), str(session.folder.log))
    result = study.result(best)
    mean = " (mean over seeds)" if spec.search.seeds > 1 or result["best_value"] != best.values[0] else ""
    selection = study.selection()
    assert selection is not None
    which = "Best" if selection.best == best.number else "Cheapest contender"
    estimate = f", {one.text()}" if (one := selection.estimate(best.number)) else ""
    session.console.say(
        f"{which}: trial {best.number}, {study.objective.metric} {show(result['best_value'])} on validation{mean}"
        f"{estimate}"
    )
    session.console.say(selection.text())
    attributes = best.user_attrs
    winner = manager.experiment(attributes.get("seed_of", best.number), attributes["params"])
    trained = study.home(best.number * spec.search.seeds)
    if not (trained / worker.UNITS).exists():
        with suppress(OSError):  # it may have been trained on a node with its own copy
            sync_state.gather(trained)
    before = _prepare_folder(session, best.number, trained) * spec.plan.epochs
    opened = winners.tested(session.folder)
    if opened and best.number not in opened:
        session.console.say(
            f"Test is opened again: trial {best.number} is model {len(opened) + 1} of this sweep to be evaluated on it"
        )
    rows = [row for row in _rows(study, best.number) if row.epoch <= result["epoch"]]
    if not spec.plan.refit:
        return Winner(winner, before, rows, checkpoint=checkpoint.latest(trained))
    selected = Progress(
        epoch=result["epoch"],
        best_epoch=result["best_epoch"],
        best_value=result["best_value"],
        best_metrics=result["best_metrics"],
    )
    return Winner(winner, before, rows, selected)


def _prepare_folder(session: Session, number: int, trained: Path) -> int:
    """Create the winner's folder with its trial's validation units, and discard an earlier winner's files.

    Returns the number of winners before this one.
    """
    folder = session.folder.path / WINNER
    earlier = winners.record_winner(session.folder, number)
    if folder.exists() and winners.trial_of_outcome(session.folder) != number:
        (session.folder.path / HISTORY).write_text("")  # its rows are the winner's
        session.folder.update(result=None)
        session.discard(folder)
    folder.mkdir(exist_ok=True)
    winners.mark_outcome(session.folder, number)
    if (trained / worker.UNITS).exists():
        shutil.copyfile(trained / worker.UNITS, folder / worker.UNITS)
    micro_batches.carry(trained, folder, folder / TRAIN)  # where a group has it
    return earlier


def _rows(study: Study, number: int) -> list[Row]:
    """The rows of a trial. Those of a member of a population are of the training that led to its weights."""
    rows: list[Row] = []
    before = float("inf")
    for part in members.parts(study.optuna_study.get_trials(deepcopy=False), number):
        own = [row for row in curves.rows(study.folder, part.trial) if part.first <= row.epoch < before]
        rows = own + rows
        before = part.first
    return rows


def _too_many(failures: FailureLimit, sweep: Path) -> str:
    again = commands.for_run(sweep, "sweep --resume", "--retry-failed")
    return f"stopped, {failures}. Fix the cause and continue with: {again}; --max-failures N allows more"


def _why_none(study: Study) -> str:
    infeasible = sum(trial.state.name == "COMPLETE" for trial in study.trials)
    if infeasible:  # else one of them would be the best
        return f"none of the {infeasible} complete trials meets {' and '.join(study.spec.search.constraint)}"
    if isinstance(study, Population) and study.unfinished():
        why = "the budget was spent before a member of the population ran to its end"
        return f"{why} (a resume has a new time budget, and the same device hours)"
    causes = [str(t.user_attrs["cause"]) for t in study.trials if "cause" in t.user_attrs]
    if not causes:
        return "no trial ran to its end"
    commonest = max(causes, key=causes.count)
    return f"no trial ran to its end; {causes.count(commonest)} of {len(study.trials)}: {commonest}"


def finalize(
    result: Result,
    session: Session,
    spec: SweepSpec,
    study: Study,
    manager: TrialManager,
    options: Options,
    winner: ExperimentSpec,
) -> Result:
    """Write tables, plots and pages. Returns the result with the exit code."""
    from orchestrator.report import report

    folder = session.folder.path
    every_trial = members.with_present_params(study.trials)
    failed = len(study.failed())
    best = study.winner()
    selection = study.selection()
    assert best is not None
    assert selection is not None
    rows = trials.rows(every_trial, study.objectives, spec.search.seeds)
    report.write_trials(rows, folder)
    status: Status = "partial" if failed else "finished"
    opened = winners.mark_tested(session.folder)
    report.write_page(session.folder, rows, {**result.to_json(), "status": status, "best_trial": best.number})
    chosen = {"trial": best.number, "params": best.user_attrs["params"]}
    if len(training := members.parts(study.optuna_study.get_trials(deepcopy=False), best.number)) > 1:
        chosen["schedule"] = [{"from_epoch": max(1, part.first), "params": part.params} for part in reversed(training)]
    (folder / "best.json").write_text(json.dumps(chosen, indent=1))
    contenders = ", ".join(map(str, selection.contenders or ()))
    table = _ranking(rows, study)
    if session.tracker:
        earlier = winners.steps(session.folder, spec.plan.epochs)
        notes = [
            _note(session, study, best, winner, options),
            _trials_note(manager.runs, *table),
            _noise_note(selection, best.number),
        ]
        tags = {
            "orchestrator.best_trial": str(best.number),
            "orchestrator.test_opened": str(opened),
            "orchestrator.device_seconds": f"{manager.budget.used:.1f}",
            **{f"best.{name}": str(value) for name, value in spec.searched(best.user_attrs["params"]).items()},
        }
        if earlier:
            tags["orchestrator.winners"] = earlier
            notes.append(f"Winners, the current one last: {earlier}.")
        if contenders:
            tags["orchestrator.contenders"] = contenders
        tags[description.NOTE] = "\n\n".join(notes)
        session.tracker.tag(session.folder.id, tags)
        session.tracker.log(session.folder.id, _seed_curve(session, spec, study, best))
        session.tracker.files(session.folder.id, [folder / name for name in report.FILES])
    if options.keep != "all":  # the winner has a folder of its own
        session.discard(folder / "trials")
    if options.keep == "none":
        discard_checkpoints(session, folder / WINNER)
    session.console.table(*table)
    code = PARTIAL if failed else DONE
    seconds = sum(map(_train_seconds, every_trial))
    if spec.plan.refit:  # without a refit the winner's seconds are its trial's
        seconds += result.train_seconds
    extra = {
        "trials": len(every_trial), "failed": failed, "best_trial": best.number, "test_opened": opened,
        "best_params": best.user_attrs["params"],
    }  # fmt: skip
    full = replace(
        result, train_seconds=seconds, device_seconds=seconds * spec.resources.devices,
        wall_seconds=session.wall_seconds, status=status, folder=folder, exit_code=code,
        extra={**result.extra, **extra},
    )  # fmt: skip
    session.set_end(status, code, run_id=full.run_id, result=full.to_json())
    return full


def _seed_curve(session: Session, spec: SweepSpec, study: Study, best: FrozenTrial) -> list[Row]:
    """Mean and spread of the winner's seeds by epoch, at its steps on the sweep's MLflow run."""
    before = (len(winners.recorded(session.folder)) - 1) * spec.plan.epochs
    metric = study.objective.metric
    numbers = {best.number, *(trial.number for trial in repeats(study.trials, best))}
    curve = curves.over_seeds(curves.read(session.folder.path, f"validation/{metric}"), numbers)
    now = time.time()
    return [
        Row(before + point.epoch, now, {f"seeds/{metric}": point.mean, f"seeds/{metric}_sd": point.spread})
        for point in curve
    ]


def _train_seconds(trial: FrozenTrial) -> float:
    """Training seconds of all seeds of a trial, including those of a trial that did not end."""
    return float(trial.user_attrs.get("train_seconds") or sum(seed["train_seconds"] for seed in seed_results(trial)))


def _ranking(rows: list[dict[str, Any]], study: Study) -> tuple[str, list[str], list[list[Any]]]:
    """Title, columns and cells of the table of the best trials."""
    sign = -1.0 if study.objective.direction == "max" else 1.0
    selection = study.selection()
    order = {one.trial: position for position, one in enumerate(selection.estimates if selection else ())}

    def position(row: dict[str, Any]) -> tuple[Any, ...]:
        estimate = order.get(row["trial"], len(order))
        return (row["state"] != "complete", bool(row.get("violates")), estimate, sign * (row["value"] or 0.0))

    ranked = sorted(rows, key=position)[:SHOWN]
    names = sorted({name for row in rows for name in row if name.startswith("params.")})
    if len(study.objectives) > 1:
        unbeaten = {trial.number for trial in front(study.trials, study.objectives)}
        ranked = [{**row, "pareto": "front" if row["trial"] in unbeaten else None} for row in ranked]
    optional = ("values", "pareto", "spread", "violates", "repeat_of")
    extra = [name for name in optional if any(row.get(name) is not None for row in ranked)]
    columns = ["trial", "state", "value", *extra, "epochs", *names]
    title = f"{study.objective.metric} on validation" + (f", best {SHOWN} of {len(rows)}" if len(rows) > SHOWN else "")
    cells = [[row.get(name) for name in columns] for row in ranked]
    return title, [name.removeprefix("params.") for name in columns], cells


def _note(session: Session, study: Study, best: FrozenTrial, winner: ExperimentSpec, options: Options) -> str:
    states = Counter(trial.state.name.lower() for trial in study.trials)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    chosen = {"trial": best.number, "params": study.spec.searched(best.user_attrs["params"])}
    folder = session.folder.path / WINNER
    space = session.folder.record["spec"].get("contract", {}).get("space", {})  # old sweeps have none
    return description.of_sweep(session.folder.id, study.spec, space, chosen, counts, winner, folder, options.register)


def _noise_note(selection: Selection, trial: int) -> str:
    """The winner's estimate and the contenders, as text for MLflow."""
    estimate = selection.estimate(trial)
    return (f"Trial {trial}: {estimate.text()}. " if estimate else "") + f"{selection.text()}."


def _trials_note(runs: TrialRuns, title: str, columns: list[str], cells: list[list[Any]]) -> str:
    """The table as Markdown, each trial with a link to its run: MLflow shows it on the sweep's run, since its lists
    hide children."""
    opened = ((runs.opened(number), number, rest) for number, *rest in cells)
    rows = ([f"[{number}](#/runs/{run})" if run else str(number), *map(show, rest)] for run, number, rest in opened)
    return f"**{title}**\n\n{markdown.table(columns, rows)}"
