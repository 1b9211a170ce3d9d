"""``orchestrator top``: the cluster, its runs, and those that ended in the last hour; live on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from orchestrator.cluster import usage
from orchestrator.console import aligned, duration, json_line, show
from orchestrator.runs import driver_status
from orchestrator.storage import run_lookup
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings

ENDED_SECONDS = 3600.0
"""How long a run is shown after its end."""

QUIET_SECONDS = 60.0
"""Time without a status after which a driver is shown as silent."""

ALIVE = ("running", "silent")
COLUMNS = ("ID", "STATUS", "DONE", "TRIALS", "EPOCHS/S", "BEST", "LEFT", "DEVICE TIME", "UNSENT", "DRIVER", "QUEUE")


def top(settings: Settings, *, once: bool, as_json: bool, every: float) -> None:
    """Show the view until Ctrl-C; only once with ``once`` or ``as_json``, or if the output is not a terminal."""
    monitor = usage.UsageMonitor(settings.ray_address, every) if settings.ray_address else None
    try:
        if once or as_json or not sys.stdout.isatty():
            view = snapshot(settings, monitor.first() if monitor else None)
            print(json_line(view) if as_json else as_text(view))
            return
        _live(lambda: snapshot(settings, monitor.last if monitor else None), every)
    finally:
        if monitor:
            monitor.close()


def snapshot(settings: Settings, cluster: usage.Usage | None) -> dict[str, Any]:
    """The current state: ``cluster`` (None: not configured), and ``runs``, running ones first, newest first."""
    now = time.time()
    recent = [row for folder in run_lookup.folders(settings.storage) if (row := _row(folder, now))]
    recent.sort(key=lambda row: (row["status"] not in ALIVE, row["ago"]))
    return {"time": now, "cluster": asdict(cluster) if cluster else None, "runs": recent}


def as_text(view: Mapping[str, Any]) -> str:
    """A snapshot as plain lines."""
    table = [aligned([COLUMNS, *map(_cells, view["runs"])])] if view["runs"] else []
    return "\n".join([_heading(view), *table, *_troubles(view)])


def _row(folder: RunFolder, now: float) -> dict[str, Any] | None:
    """A run or sweep, from its record and its driver's last status; None if it ended too long ago."""
    record = folder.record
    status = folder.status()
    ended = record.get("ended")
    if ended and now - _moment(ended) >= ENDED_SECONDS:
        return None
    reported = driver_status.read(folder)
    ago = now - (_moment(ended) if ended else max(_moment(record["started"]), reported.get("time", 0.0)))
    if status not in ALIVE and ago >= ENDED_SECONDS:
        return None
    left = reported.get("seconds_left")
    return {
        "id": folder.id,
        "kind": record["kind"],
        "workload": record["workload"],
        "user": record.get("user"),
        "status": "silent" if status == "running" and reported and ago > QUIET_SECONDS else status,
        "ago": round(ago, 1),
        "started": record["started"],
        **{name: reported.get(name) for name in ("done", "target", "trials", "epochs_per_second", "best", "spool")},
        **{name: reported.get(name) for name in ("queue", "priority", "device_seconds", "driver_utilisation")},
        "seconds_left": None if left is None else max(0.0, round(left - ago, 1)),
        "error": record.get("error") or reported.get("trouble"),
    }


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _cells(row: Mapping[str, Any]) -> list[str]:
    running = row["status"] in ALIVE
    states = ", ".join(f"{count} {state}" for state, count in sorted((row["trials"] or {}).items()))
    best = "  ".join(f"{name} {show(value)}" for name, value in (row["best"] or {}).items() if name != "trial")
    held = row["device_seconds"] or {}
    time_held = f"{duration(held['gpus'])} GPU" if held.get("gpus") else f"{duration(held.get('cpus', 0.0))} CPU"
    return [
        row["id"],
        row["status"] if running else f"{row['status']} {duration(row['ago'])} ago",
        "" if row["done"] is None else f"{row['done']}/{row['target']} {'trials' if row['trials'] else 'epochs'}",
        states,
        f"{row['epochs_per_second']:.3g}" if running and row["epochs_per_second"] is not None else "",
        best,
        duration(row["seconds_left"]) if running and row["seconds_left"] is not None else "",
        time_held if held else "",
        str(row["spool"] or ""),
        f"{row['driver_utilisation']:.0%}" if running and row["driver_utilisation"] is not None else "",
        "" if row["queue"] is None else f"{row['queue']} x{row['priority']}",
    ]


def _heading(view: Mapping[str, Any]) -> str:
    running = sum(row["status"] in ALIVE for row in view["runs"])
    cluster = usage.as_text(usage.Usage(**view["cluster"])) if view["cluster"] else "no cluster is configured"
    return f"{datetime.fromtimestamp(view['time'], UTC):%H:%M:%S} UTC  {running} running  {cluster}"


def _troubles(view: Mapping[str, Any]) -> list[str]:
    """The last error of each run that has one."""
    return [f"{row['id']}: {row['error']}" for row in view["runs"] if row["error"]]


def _live(take: Callable[[], Mapping[str, Any]], every: float) -> None:
    with Live(_drawn(take()), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_drawn(take()), refresh=True)


def _drawn(view: Mapping[str, Any]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = ("EPOCHS/S", "UNSENT", "DRIVER")
    for name in COLUMNS:
        table.add_column(name, no_wrap=name == "ID", justify="right" if name in numbers else "left")
    for row in view["runs"]:
        table.add_row(*map(escape, _cells(row)), style=_STYLES.get(row["status"], "dim"))
    errors = [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in _troubles(view)]
    return Group(Text(_heading(view)), Text(), table, Text(), *errors)


_STYLES = {"running": "", "silent": "yellow", "failed": "red", "lost": "red"}
