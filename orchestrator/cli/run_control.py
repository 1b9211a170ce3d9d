"""The verbs ``status``, ``logs`` and ``stop``, for runs, sweeps, trials and jobs.

An id is looked up first among the records in the storage, then among the jobs of the cluster.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.config.spec import Resources, parse
from orchestrator.console import json_line, show
from orchestrator.errors import DONE, FAILED, USAGE, UserError, nearest
from orchestrator.report import listing
from orchestrator.runs import driver_status
from orchestrator.storage import commands, disk, records, remote, run_lookup
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    from orchestrator.jobs.dashboard import Dashboard
    from orchestrator.jobs.job_state import Job
    from orchestrator.sweeps.steering import StopState

POLL_SECONDS = 0.5


def status(settings: Settings, reference: str, *, wait: bool, address: str | None, as_json: bool) -> int:
    """Print the status and return 0; with ``wait`` wait for the end and return its exit code. Raises UserError."""
    if trial := _trial_of(settings, reference):
        return _trial_status(settings, *trial, wait=wait, as_json=as_json)
    target = find(settings, reference, address)
    if isinstance(target, RunFolder):
        values = _run(target)
        while wait and values["status"] == "running":
            time.sleep(POLL_SECONDS)
            values = _run(run_lookup.find(settings.storage, target.id))
        values["search"] = None
        if values["kind"] == "sweep" and values["status"] not in records.SETTLED:
            with suppress(UserError):
                values["search"] = listing.progress(target)
    else:
        from orchestrator.jobs.submission import resume_command

        dashboard, job = target
        job = dashboard.wait(job) if wait else job
        values = {"kind": "job", **asdict(job), "dashboard": dashboard.address, "resume": resume_command(job)}
    print(json_line(values) if as_json else _text(values))
    return int(values["exit_code"]) if wait else DONE


def _trial_status(settings: Settings, sweep: RunFolder, number: int, *, wait: bool, as_json: bool) -> int:
    values = _trial(sweep, number)
    while wait and values["exit_code"] is None and sweep.status() == "running":
        time.sleep(POLL_SECONDS)
        values = _trial(sweep, number)
    print(json_line(values) if as_json else _text(values))
    if not wait:
        return DONE
    if values["exit_code"] is None:  # the sweep has ended without the end of this trial
        return _run(run_lookup.find(settings.storage, sweep.id))["exit_code"] or FAILED
    return int(values["exit_code"])


def logs(settings: Settings, reference: str, *, follow: bool, address: str | None) -> int:
    """Print the log; with ``follow`` print new lines until the end. Return 1 for a job that is lost meanwhile, else 0.

    Raises UserError.
    """
    from orchestrator.jobs import submission
    from orchestrator.jobs.job_state import Lines

    if trial := _trial_of(settings, reference):
        _print_log(settings, trial[0], follow, f" trial {trial[1]} ")
        return DONE
    target = find(settings, reference, address)
    if isinstance(target, RunFolder):
        _print_log(settings, target, follow)
        return DONE
    dashboard, job = target
    show_line = partial(print, flush=True)
    if follow:
        return FAILED if submission.follow(dashboard, job, show_line).status == "lost" else DONE
    lines = Lines(show_line)
    lines.feed(dashboard.log(job.id), 0)
    lines.close()
    return DONE


def stop(settings: Settings, reference: str, verdict: StopState = "pruned", *, address: str | None) -> None:
    """Stop a run, sweep or job cleanly, or a trial (``SWEEP/7``), which ends by ``verdict``. Raises UserError.

    A run, sweep or job that is not running is reported, which is no error.
    """
    if trial := _trial_of(settings, reference):
        from orchestrator.sweeps import steering

        when = steering.stop(*trial, verdict)
        print(f"Trial {trial[1]} of {trial[0].id} ends {when}, as {verdict}")
        return
    target = find(settings, reference, address)
    if isinstance(target, RunFolder):
        _stop_run(target)
        return
    from orchestrator.jobs.submission import end_of

    dashboard, job = target
    if not job.active:
        print(f"Nothing to stop: {end_of(job)}")
        return
    print(f"Stopping {job.id}: it saves first ...", flush=True)
    print(end_of(dashboard.stop(job)))


def find(settings: Settings, reference: str, address: str | None) -> RunFolder | tuple[Dashboard, Job]:
    """Find the folder or job of ``reference``: an id of a run, sweep, MLflow run or job, or ``latest``.

    With an ``address``, ``latest`` is the newest job of that cluster; with one in the environment it is the newest of
    its jobs and the runs in the storage. Raises UserError: exit 2 for an unknown id, 3 when the named cluster does not
    answer.
    """
    from orchestrator.jobs.dashboard import Dashboard, configured_address, dashboard_address

    named = address or configured_address()
    folder = None if reference == "latest" and address else run_lookup.find_here(settings.storage, reference)
    if folder and not (reference == "latest" and named):
        return folder
    where = f"the jobs at {dashboard_address(address)}"
    try:
        dashboard = Dashboard(address)
        job = next(iter(dashboard.jobs()), None) if reference == "latest" else dashboard.job(reference)
        if folder and (job is None or (job.started or "") < str(folder.record["started"])):
            return folder
        if job is not None:
            return dashboard, job
    except UserError as error:
        if named:
            raise
        where += f" ({error.got})"
    ids = [folder.id for folder in run_lookup.folders(settings.storage)]
    if reference == "latest" and not ids and not named:
        raise UserError("There is no run, sweep or job yet", fix=f"Looked in {settings.storage}")
    close = nearest(reference, ids)
    raise UserError(
        "Unknown run, sweep or job",
        got=repr(reference),
        allowed=["latest", *ids[:5]] if ids else None,
        fix=(f"Did you mean {close}? " if close else "") + f"Looked in {settings.storage} and among {where}",
    )


def _trial_of(settings: Settings, reference: str) -> tuple[RunFolder, int] | None:
    """The sweep and number of a trial (``SWEEP/7``); None for other references. Raises UserError if it is unknown."""
    sweep, slash, number = reference.rpartition("/")
    return (run_lookup.find(settings.storage, sweep, "sweep"), int(number)) if slash and number.isdecimal() else None


def _trial(folder: RunFolder, number: int) -> dict[str, Any]:
    """The values of ``status SWEEP/7 --json``: the trial's row of the report. Raises UserError for an unknown trial."""
    rows = {row["trial"]: row for row in listing.trial_rows(folder)}
    if number not in rows:
        raise UserError(f"{folder.id} has no such trial", got=number, allowed=f"0 to {max(rows)}" if rows else None)
    row = {name: value for name, value in rows[number].items() if name != "trial"}
    state = row.pop("state")
    code = {"complete": DONE, "pruned": DONE, "fail": FAILED}.get(state)
    return {"id": f"{folder.id}/{number}", "kind": "trial", "status": state, "exit_code": code, **row}


def _run(folder: RunFolder) -> dict[str, Any]:
    """The values of ``status --json`` for a run or sweep."""
    state = folder.status()
    if state == "lost":  # it may just be starting or ending: read it again
        time.sleep(0.2)
        folder = run_lookup.find(folder.path.parent, folder.id)
        state = folder.status()
    record = folder.record
    result = folder.result()
    code = FAILED if state == "lost" else None if state == "running" else record.get("exit_code")
    resumable = state in ("interrupted", "lost") or (state == "failed" and code != USAGE)
    return {
        "id": folder.id,
        "kind": record["kind"],
        "workload": record["workload"],
        "status": state,
        "exit_code": code,
        "started": record["started"],
        "ended": record.get("ended"),
        "run_id": record.get("run_id"),
        "objectives": [metric for metric, _ in record.get("objectives", ())],
        "metrics": result.get("metrics", {}),
        "model_uri": result.get("model_uri"),
        "accumulate": record.get("accumulate"),
        "error": record.get("error"),
        "devices": _devices(record),
        "driver": f"pid {record.get('pid')} on {record.get('host')}"
        + (", ended without recording how" if state == "lost" else ""),
        "command": record["command"],
        "progress": disk.last_line(folder.log) if state == "running" else _last_epoch(folder, state),
        "folder": str(folder.path),
        "log": str(folder.log),
        "resume": folder.resume_command if resumable else None,
    }


def _devices(record: Mapping[str, Any]) -> str | None:
    """What a run or each trial of a sweep holds, as it was decided."""
    request = record.get("spec") or {}
    values = (request.get("sweep") or request.get("experiment") or {}).get("resources")
    local = (request.get("options") or {}).get("local", False)
    with suppress(UserError):  # of a later version
        return None if values is None else parse(Resources, values, "the run").text(local)
    return None


def _last_epoch(folder: RunFolder, state: str) -> str | None:
    """How far a run that can be resumed had come when it ended, as its driver reported last."""
    if folder.record["kind"] != "run" or state not in ("interrupted", "lost"):
        return None
    reported = driver_status.read(folder)
    return f"epoch {reported['done']} of {reported['target']}" if reported.get("done") else None


def _text(values: Mapping[str, Any]) -> str:
    """One ``name: value`` a line, without empty ones; of the metrics only the objectives (``--json`` has all)."""
    lines = []
    for name, value in values.items():
        if name == "objectives":
            value = ", ".join(value)
        if name == "metrics":
            value = "  ".join(f"{key} {show(value[key])}" for key in _headlines(value, values["objectives"]))
        if name == "search" and value:
            value = listing.progress_as_text(value)
        if value not in (None, ""):
            lines.append(f"{name + ':':<11} {value}")
    return "\n".join(lines)


def _headlines(metrics: Mapping[str, float], objectives: Sequence[str]) -> list[str]:
    """The objectives on each split, or the first three test metrics if the objectives are unknown."""
    names = (f"{split}/{objective}" for objective in objectives for split in ("validation", "test"))
    return [name for name in names if name in metrics] or [name for name in metrics if name.startswith("test/")][:3]


def _print_log(settings: Settings, folder: RunFolder, follow: bool, only: str = "") -> None:
    """Print the lines of the log that contain ``only``."""
    position = 0
    while True:
        running = folder.status() == "running"  # checked before reading, so that the last lines are read
        if folder.log.exists():
            with folder.log.open(encoding="utf-8", errors="replace") as file:
                file.seek(position)
                print("".join(line for line in file if only in line), end="", flush=True)
                position = file.tell()
        if not (follow and running):
            return
        time.sleep(POLL_SECONDS)
        folder = run_lookup.find(settings.storage, folder.id)


def _stop_run(folder: RunFolder) -> None:
    values = _run(folder)
    resume = f" Continue with: {values['resume']}" if values["resume"] else ""
    if values["status"] != "running":
        print(f"Nothing to stop: {folder.id} is {values['status']}.{resume}")
        return
    folder.stop()
    print(
        f"{folder.id} stops at the end of this epoch and saves. See: {commands.for_run(folder.path, 'status --wait')}"
    )
    if (host := folder.record.get("host")) != socket.gethostname() and not remote.location_of(folder.path):
        print(f"It runs on {host} and stops when it finds {folder.stop_file}, which must be on shared storage.")
    print(f"Continue with: {folder.resume_command}")
