"""What there is: runs and sweeps as a list, the best trials of a sweep, how far a running one is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from orchestrator.console import aligned, duration, show
from orchestrator.errors import UserError, unknown
from orchestrator.report import trials
from orchestrator.search.progress import search_progress
from orchestrator.search.ranking import ranked
from orchestrator.storage import records
from orchestrator.storage.names import TRIALS
from orchestrator.storage.records import SETTLED, Kind, RunFolder
from orchestrator.storage.settings import Settings

STATUSES = ("running", "finished", "partial", "failed", "interrupted", "lost")


def listed(
    settings: Settings, *, kind: Kind | None = None, workload: str | None = None, status: str | None = None, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Runs and sweeps, the newest first: at most ``limit`` of those asked for, and how many there are.

    Raises UserError for a status or workload that nothing has, with the nearest.
    """
    if status is not None and status not in STATUSES:
        raise unknown("status", status, STATUSES)
    every = [folder for folder in records.folders(settings.storage) if kind in (None, folder.record["kind"])]
    known = {folder.record["workload"] for folder in every}
    if workload is not None and every and workload not in known:
        raise unknown("workload among the runs", workload, known)
    found = [folder for folder in every if workload in (None, folder.record["workload"])]
    found = [folder for folder in found if status in (None, folder.status())]
    found.sort(key=lambda folder: (str(folder.record["started"]), folder.id), reverse=True)
    return [_told(folder) for folder in found[:limit]], len(found)


def best(folder: RunFolder, top: int) -> list[dict[str, Any]]:
    """The ``top`` best complete trials of a sweep, running or settled, the winner first.

    Each with parameters, values on validation (mean and ``spread`` over ``seeds`` where they are repeated) and the
    command that repeats it; the winner of a settled sweep with its test metrics and its model too.
    Raises UserError when no trial is complete.
    """
    objectives = trials.objectives(folder)
    found = trials.own(trials.study(folder))
    winner = trials.best(folder, found, objectives[0])
    if winner is None:
        raise UserError(f"{folder.id} has no complete trial", fix=f"See: orchestrator status {folder.id}")
    others = [trial for trial in ranked(found, objectives[0]) if trial.number != winner.number]
    rows = {row["trial"]: row for row in trial_rows(folder)}
    told = []
    for trial in [winner, *others][:top]:
        row = rows[trial.number]
        told.append(
            {
                "sweep": folder.id,
                "trial": trial.number,
                "params": trial.user_attrs["params"],
                "validation": {o.metric: value for o, value in zip(objectives, trial.values)},
                "spread": row.get("spread"),
                "seeds": row.get("seeds"),
                "epochs": trial.user_attrs.get("epoch"),
                "command": trials.command(folder, trial),
            }
        )
    result = folder.record.get("result") or {}
    if result.get("best_trial") == winner.number:
        metrics = result.get("metrics", {})
        told[0]["test"] = {k.removeprefix("test/"): v for k, v in metrics.items() if k.startswith("test/")}
        told[0]["model_uri"] = result.get("model_uri")
        told[0]["run_id"] = folder.record.get("run_id")
    return told


def as_text(rows: Sequence[Mapping[str, Any]], known: int) -> str:
    """The rows of :func:`listed` under their names; ``known`` is how many there are."""
    if not rows:
        return "No run or sweep yet." if not known else "None."
    lines = [["ID", "KIND", "STATUS", "STARTED (UTC)", "TOOK", "VALUE", "TRIALS"]]
    for row in rows:
        took = "" if row["seconds"] is None else duration(row["seconds"])
        value = "" if row["value"] is None else f"{row['metric']} {show(row['value'])}"
        trials = f"{row['trials_done']}/{row['trials_target']}" if "trials_done" in row else ""
        started = str(row["started"])[:16].replace("T", " ")
        lines.append([row["id"], row["kind"], row["status"], started, took, value, trials])
    more = [f"{known - len(rows)} more: --limit {known}"] if known > len(rows) else []
    return "\n".join([aligned(lines), *more])


def best_as_text(found: Sequence[Mapping[str, Any]]) -> str:
    """One trial in full, or several as a table."""
    if len(found) == 1:
        return _in_full(found[0])
    names = list(dict.fromkeys(name for row in found for name in row["params"]))
    metrics = list(found[0]["validation"])
    spread = ["SD"] if any(row["spread"] is not None for row in found) else []
    lines = [["TRIAL", *metrics, *spread, *names]]
    for row in found:
        cells = [*row["validation"].values(), *([row["spread"]] if spread else []), *map(row["params"].get, names)]
        lines.append([str(row["trial"]), *map(show, cells)])
    return aligned(lines)


def _in_full(row: Mapping[str, Any]) -> str:
    over = f" (mean of {len(row['seeds'])} seeds, sd {show(row['spread'])})" if row.get("seeds") else ""
    test = {name: row["test"][name] for name in row["validation"] if name in row.get("test", {})}
    told = {
        "sweep": row["sweep"],
        "trial": row["trial"],
        "validation": "  ".join(f"{name} {show(value)}" for name, value in row["validation"].items()) + over,
        "test": "  ".join(f"{name} {show(value)}" for name, value in test.items()),
        "params": "  ".join(f"{name}={show(value)}" for name, value in row["params"].items()),
        "model": row.get("model_uri"),
        "repeat": row["command"],
    }
    return "\n".join(f"{name + ':':<11} {value}" for name, value in told.items() if value not in (None, ""))


def trial_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """A sweep's trials as rows: as it left them, else as its journal has them now. Raises UserError without any."""
    file = folder.path / TRIALS
    if folder.status() in SETTLED and file.exists():
        rows: list[dict[str, Any]] = json.loads(file.read_text())
        return rows
    return trials.rows(
        trials.own(trials.study(folder)), trials.objectives(folder), trials.spec(folder)["search"].get("seeds", 1)
    )


def progress(folder: RunFolder) -> dict[str, Any]:
    """How far a sweep is: ``trials`` by state, ``target``, ``best`` so far, ``seconds_left`` (None: unknown).

    Of one that no one drives no trial is running: what its journal calls so was interrupted, and no time is left.
    """
    target = trials.spec(folder)["search"]["trials"]
    try:
        found = trials.own(trials.study(folder))
    except UserError:  # it has only just begun
        return {"trials": {}, "target": target, "best": None, "seconds_left": None}
    objective = trials.objectives(folder)[0]
    told = search_progress(found, target, objective, trials.best(folder, found, objective))
    if folder.status() == "running":
        return told
    states = {"interrupted" if state == "running" else state: count for state, count in told["trials"].items()}
    return told | {"trials": states, "seconds_left": None}


def progress_as_text(told: Mapping[str, Any]) -> str:
    """``7 of 16 trials: 5 complete, 2 running; best: trial 3, ndcg_at_20 0.25; 12 s left``."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(told["trials"].items()))
    parts = [f"{sum(told['trials'].values())} of {told['target']} trials" + (f": {states}" if states else "")]
    if told["best"]:
        parts.append("best: " + ", ".join(f"{name} {show(value)}" for name, value in told["best"].items()))
    if told["seconds_left"] is not None:
        parts.append(f"{duration(told['seconds_left'])} left")
    return "; ".join(parts)


def _told(folder: RunFolder) -> dict[str, Any]:
    record = folder.record
    result: Mapping[str, Any] = record.get("result") or {}
    status = folder.status()
    ended = record.get("ended") or (datetime.now(UTC).isoformat() if status == "running" else None)
    started = record["started"]
    took = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds() if ended else None
    metric, value = _headline(record, result.get("metrics", {}))
    told = {
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
    }
    return told | (_counted(folder, result) if record["kind"] == "sweep" else {})


def _headline(record: Mapping[str, Any], metrics: Mapping[str, float]) -> tuple[str | None, float | None]:
    """The first objective, on test where it was opened."""
    for metric, _ in record.get("objectives", ())[:1]:
        for split in ("test", "validation"):
            if (name := f"{split}/{metric}") in metrics:
                return name, metrics[name]
    return None, None


def _counted(folder: RunFolder, result: Mapping[str, Any]) -> dict[str, int]:
    """Trials that ended, and how many there are to be."""
    counted: dict[str, int] = {}
    with suppress(UserError):
        counted["trials_target"] = trials.spec(folder)["search"]["trials"]
        counted["trials_done"] = 0
        if "trials" in result:
            return counted | {"trials_done": result["trials"]}
        counted["trials_done"] = sum(trial.state.is_finished() for trial in trials.own(trials.study(folder)))
    return counted
