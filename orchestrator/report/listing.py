"""Lists of runs and sweeps, the best trials of a sweep, the progress of a running sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from orchestrator.console import aligned, duration, show
from orchestrator.errors import UserError, unknown
from orchestrator.report import trials
from orchestrator.report.statistics import summary
from orchestrator.runs import driver_status
from orchestrator.search import recorded
from orchestrator.search.progress import search_progress, target
from orchestrator.search.ranking import ranked
from orchestrator.search.selection import Estimate
from orchestrator.storage import commands, run_lookup
from orchestrator.storage.names import TRIALS
from orchestrator.storage.records import SETTLED, Kind, RunFolder
from orchestrator.storage.settings import Settings

ESTIMATE = {"value": "ESTIMATE", "units_error": "SE (UNITS)", "seeds_error": "SE (SEEDS)"}
"""Columns of an estimate."""

STATUSES = ("running", "finished", "partial", "failed", "interrupted", "lost")


def listed(
    settings: Settings, *, kind: Kind | None = None, workload: str | None = None, status: str | None = None, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """At most ``limit`` of the selected runs and sweeps, newest first, and the number of all selected ones.

    Raises UserError for an unknown status or workload, with the nearest.
    """
    if status is not None and status not in STATUSES:
        raise unknown("status", status, STATUSES)
    if (kind, workload, status) == (None, None, None):
        folders, total = run_lookup.started_last(settings.storage, limit)
        return [_row(folder) for folder in folders], total
    every = [folder for folder in run_lookup.folders(settings.storage) if kind in (None, folder.record["kind"])]
    workloads = {folder.record["workload"] for folder in every}
    if workload is not None and every and workload not in workloads:
        raise unknown("workload among the runs", workload, workloads)
    selected = [folder for folder in every if workload in (None, folder.record["workload"])]
    selected = [folder for folder in selected if status in (None, folder.status())]
    selected.sort(key=lambda folder: (str(folder.record["started"]), folder.id), reverse=True)
    return [_row(folder) for folder in selected[:limit]], len(selected)


def best(folder: RunFolder, top: int) -> list[dict[str, Any]]:
    """The ``top`` best complete trials of a sweep, running or finished, the winner first.

    Each has its parameters, values on validation (with repeated ``seeds`` their mean and ``spread``), its ``estimate``
    with standard errors (None where no noise is known) and the command that repeats it. The winner has the
    ``contenders``, the trials that cannot be separated from the best one, which is the first (None where that is not
    known); of a finished sweep it also has test metrics and its model. Raises UserError when no trial is complete.
    """
    objectives = recorded.objectives(folder)
    all_trials = recorded.trials(folder)
    selection = trials.selection(folder)
    winner = trials.best(folder, all_trials, objectives[0], selection)
    if winner is None or selection is None:
        needed = " that meets its constraints" if any(trial.constraints for trial in all_trials) else ""
        raise UserError(
            f"{folder.id} has no complete trial{needed}", fix=f"See: {commands.for_run(folder.path, 'status')}"
        )
    estimates = {one.trial: (order, one) for order, one in enumerate(selection.estimates)}
    others = [trial for trial in ranked(all_trials, objectives[0]) if trial.number != winner.number]
    others.sort(key=lambda trial: estimates[trial.number][0] if estimates else 0)
    rows = {row["trial"]: row for row in trial_rows(folder)}
    best_trials = []
    for trial in [winner, *others][:top]:
        row = rows[trial.number]
        values = {o.metric: value for o, value in zip(objectives, trial.values)}
        if len(seeds := trials.seed_values(trial, all_trials)) > 1:
            row = {**row, "seeds": seeds, "spread": summary(seeds).spread}
            values[objectives[0].metric] = summary(seeds).mean
        best_trials.append(
            {
                "sweep": folder.id,
                "trial": trial.number,
                "params": trial.user_attrs["params"],
                "validation": values,
                "estimate": asdict(estimates[trial.number][1]) if estimates else None,
                "contenders": list(selection.contenders)
                if selection.contenders and trial.number == winner.number
                else None,
                "spread": row.get("spread"),
                "seeds": row.get("seeds"),
                "epochs": trial.user_attrs.get("epoch"),
                "command": trials.command(folder, trial),
                "test": None,
                "model_uri": None,
                "run_id": None,
            }
        )
    result = folder.result()
    if result.get("best_trial") == winner.number:
        metrics = result.get("metrics", {})
        best_trials[0]["test"] = {k.removeprefix("test/"): v for k, v in metrics.items() if k.startswith("test/")}
        best_trials[0]["model_uri"] = result.get("model_uri")
        best_trials[0]["run_id"] = folder.record.get("run_id")
    return best_trials


def as_text(rows: Sequence[Mapping[str, Any]], total: int, *, is_selection: bool = False) -> str:
    """The rows of :func:`listed` as a table; ``total`` is the number of all selected runs.

    ``is_selection``: they were selected by kind, workload or status, so that there may be others.
    """
    if not rows:
        return "None." if is_selection else "No run or sweep yet."
    lines = [["ID", "KIND", "STATUS", "STARTED (UTC)", "TOOK", "VALUE", "TRIALS"]]
    for row in rows:
        took = "" if row["seconds"] is None else duration(row["seconds"])
        value = "" if row["value"] is None else f"{row['metric']} {show(row['value'])}"
        trials = f"{row['trials_done']}/{row['trials_target']}" if row["trials_done"] is not None else ""
        started = str(row["started"])[:16].replace("T", " ")
        lines.append([row["id"], row["kind"], row["status"], started, took, value, trials])
    more = [f"{total - len(rows)} more: --limit {total}"] if total > len(rows) else []
    return "\n".join([aligned(lines), *more])


def best_as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """One trial in full, or several as a table."""
    if len(rows) == 1:
        return _in_full(rows[0])
    names = list(dict.fromkeys(name for row in rows for name in row["params"]))
    metrics = list(rows[0]["validation"])
    spread = ["SD"] if any(row["spread"] is not None for row in rows) else []
    estimates = [row["estimate"] or {} for row in rows]
    errors = [name for name in ESTIMATE if any(one.get(name) is not None for one in estimates)]
    lines = [["TRIAL", *metrics, *spread, *map(ESTIMATE.__getitem__, errors), *names]]
    for row, estimate in zip(rows, estimates):
        cells = [*row["validation"].values(), *([row["spread"]] if spread else []), *map(estimate.get, errors)]
        lines.append([str(row["trial"]), *map(show, [*cells, *map(row["params"].get, names)])])
    return aligned(lines)


def _in_full(row: Mapping[str, Any]) -> str:
    over = f" (mean of {len(row['seeds'])} seeds, sd {show(row['spread'])})" if row.get("seeds") else ""
    test = {name: row["test"][name] for name in row["validation"] if name in (row.get("test") or {})}
    values = {
        "sweep": row["sweep"],
        "trial": row["trial"],
        "validation": "  ".join(f"{name} {show(value)}" for name, value in row["validation"].items()) + over,
        "estimate": Estimate(**row["estimate"]).text().removeprefix("estimate ") if row.get("estimate") else None,
        "contenders": ", ".join(f"trial {number}" for number in row.get("contenders") or ()),
        "test": "  ".join(f"{name} {show(value)}" for name, value in test.items()),
        "params": "  ".join(f"{name}={show(value)}" for name, value in row["params"].items()),
        "model": row.get("model_uri"),
        "repeat": row["command"],
    }
    return "\n".join(f"{name + ':':<11} {value}" for name, value in values.items() if value not in (None, ""))


def trial_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """A sweep's trials as rows, from its report if it is finished, else from its journal. Raises UserError if none."""
    file = folder.path / TRIALS
    if folder.status() in SETTLED and file.exists():
        rows: list[dict[str, Any]] = json.loads(file.read_text())
        return rows
    return trials.rows(
        recorded.trials(folder), recorded.objectives(folder), recorded.spec(folder)["search"].get("seeds", 1)
    )


def progress(folder: RunFolder) -> dict[str, Any]:
    """The progress of a sweep: ``trials`` by state, ``target``, ``best`` so far, ``seconds_left`` (None: unknown).

    While it runs also ``expected_gain`` of further trials, where ``--until-gain`` has estimated it. If the sweep has no
    live driver, trials that its journal shows as running are counted as interrupted.
    """
    requested = recorded.spec(folder)["search"]["trials"]
    try:
        all_trials = recorded.trials(folder, summary=True)
    except UserError:  # it has just started
        return {"trials": {}, "target": requested, "best": None, "seconds_left": None}
    objective = recorded.objectives(folder)[0]
    state = search_progress(
        all_trials, target(requested, all_trials), objective, trials.best(folder, all_trials, objective)
    )
    if folder.status() == "running":
        gain = driver_status.read(folder).get("expected_gain")
        return state | ({"expected_gain": gain} if gain else {})
    counts = {"interrupted" if name == "running" else name: count for name, count in state["trials"].items()}
    return state | {"trials": counts, "seconds_left": None}


def progress_as_text(state: Mapping[str, Any]) -> str:
    """``7 of 16 trials: 5 complete, 2 running; best: trial 3, ndcg_at_20 0.25; 12 s left``."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted(state["trials"].items()))
    parts = [f"{sum(state['trials'].values())} of {state['target']} trials" + (f": {counts}" if counts else "")]
    if state["best"]:
        parts.append("best: " + ", ".join(f"{name} {show(value)}" for name, value in state["best"].items()))
    if state["seconds_left"] is not None:
        parts.append(f"{duration(state['seconds_left'])} left")
    return "; ".join([*parts, *filter(None, [state.get("expected_gain")])])


def _row(folder: RunFolder) -> dict[str, Any]:
    record = folder.record
    result = folder.result()
    status = folder.status()
    ended = record.get("ended") or (datetime.now(UTC).isoformat() if status == "running" else None)
    started = record["started"]
    took = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds() if ended else None
    metric, value = _headline(record, result.get("metrics", {}))
    counted = _counted(folder, result) if record["kind"] == "sweep" else {}
    return {
        "id": folder.id,
        "kind": record["kind"],
        "workload": record["workload"],
        "status": status,
        "started": started,
        "seconds": took,
        "metric": metric,
        "value": value,
        "run_id": record.get("run_id"),
        "command": record["command"],
        **{name: counted.get(name) for name in ("trials_target", "trials_done")},
    }


def _headline(record: Mapping[str, Any], metrics: Mapping[str, float]) -> tuple[str | None, float | None]:
    """Name and value of the first objective, on test if it was evaluated."""
    for metric, _ in record.get("objectives", ())[:1]:
        for split in ("test", "validation"):
            if (name := f"{split}/{metric}") in metrics:
                return name, metrics[name]
    return None, None


def _counted(folder: RunFolder, result: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of finished and of planned trials. The journal is read where they may differ from the requested."""
    counted: dict[str, int] = {}
    with suppress(UserError):
        requested = recorded.spec(folder)["search"]["trials"]
        done = result.get("trials", 0)
        counted = {"trials_target": max(requested, done), "trials_done": done}
        if done == requested:
            return counted
        every = recorded.trials(folder, summary=True)
        counted["trials_target"] = target(requested, every)
        counted["trials_done"] = sum(trial.state.is_finished() for trial in every)
    return counted
