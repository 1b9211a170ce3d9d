"""``orchestrator top``: the cluster, what runs on it now, and what ended within the hour; live on a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.cluster import usage
from orchestrator.console import aligned, duration, show
from orchestrator.runs import driver_status
from orchestrator.storage import records
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    from rich.console import Group

ENDED_SECONDS = 3600.0
"""How long what has ended is still shown."""

QUIET_SECONDS = 60.0
"""Without a status for so long, a driver is said to be silent."""

ALIVE = ("running", "silent")
COLUMNS = ("ID", "STATUS", "DONE", "TRIALS", "EPOCHS/S", "BEST", "LEFT", "DEVICE TIME", "UNSENT", "DRIVER", "QUEUE")


def top(settings: Settings, *, once: bool, as_json: bool, every: float) -> None:
    """Show it until Ctrl-C; once where that is asked for, where it is for a machine, and where there is no terminal."""
    watch = usage.UsageMonitor(settings.ray_address, every) if settings.ray_address else None
    try:
        if once or as_json or not sys.stdout.isatty():
            seen = look(settings, watch.first() if watch else None)
            print(json.dumps(seen) if as_json else as_text(seen))
            return
        _live(lambda: look(settings, watch.last if watch else None), every)
    finally:
        if watch:
            watch.close()


def look(settings: Settings, cluster: usage.Usage | None) -> dict[str, Any]:
    """What there is now: ``cluster`` (None: none was named), and ``runs``, those that run first, newest first."""
    now = time.time()
    recent = [told for folder in records.folders(settings.storage) if (told := _told(folder, now))]
    recent.sort(key=lambda told: (told["status"] not in ALIVE, told["ago"]))
    return {"time": now, "cluster": asdict(cluster) if cluster else None, "runs": recent}


def as_text(seen: Mapping[str, Any]) -> str:
    """The same as plain lines."""
    table = [aligned([COLUMNS, *map(_cells, seen["runs"])])] if seen["runs"] else []
    return "\n".join([_heading(seen), *table, *_troubles(seen)])


def _told(folder: RunFolder, now: float) -> dict[str, Any] | None:
    """One run or sweep, by its record and by what its driver said last; None for one that ended too long ago."""
    record, status = folder.record, folder.status()
    ended = record.get("ended")
    if ended and now - _moment(ended) >= ENDED_SECONDS:
        return None
    said = driver_status.read(folder)
    ago = now - (_moment(ended) if ended else max(_moment(record["started"]), said.get("time", 0.0)))
    if status not in ALIVE and ago >= ENDED_SECONDS:
        return None
    left = said.get("seconds_left")
    return {
        "id": folder.id,
        "kind": record["kind"],
        "workload": record["workload"],
        "user": record.get("user"),
        "status": "silent" if status == "running" and said and ago > QUIET_SECONDS else status,
        "ago": round(ago, 1),
        "started": record["started"],
        **{name: said.get(name) for name in ("done", "target", "trials", "epochs_per_second", "best", "spool")},
        **{name: said.get(name) for name in ("queue", "priority", "device_seconds", "driver_utilisation")},
        "seconds_left": None if left is None else max(0.0, round(left - ago, 1)),
        "error": record.get("error") or said.get("trouble"),
    }


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _cells(told: Mapping[str, Any]) -> list[str]:
    running = told["status"] in ALIVE
    states = ", ".join(f"{count} {state}" for state, count in sorted((told["trials"] or {}).items()))
    best = "  ".join(f"{name} {show(value)}" for name, value in (told["best"] or {}).items() if name != "trial")
    held = told["device_seconds"] or {}
    time_held = f"{duration(held['gpus'])} GPU" if held.get("gpus") else f"{duration(held.get('cpus', 0.0))} CPU"
    return [
        told["id"],
        told["status"] if running else f"{told['status']} {duration(told['ago'])} ago",
        "" if told["done"] is None else f"{told['done']}/{told['target']} {'trials' if told['trials'] else 'epochs'}",
        states,
        f"{told['epochs_per_second']:.3g}" if running and told["epochs_per_second"] is not None else "",
        best,
        duration(told["seconds_left"]) if running and told["seconds_left"] is not None else "",
        time_held if held else "",
        str(told["spool"] or ""),
        f"{told['driver_utilisation']:.0%}" if running and told["driver_utilisation"] is not None else "",
        "" if told["queue"] is None else f"{told['queue']} x{told['priority']}",
    ]


def _heading(seen: Mapping[str, Any]) -> str:
    running = sum(told["status"] in ALIVE for told in seen["runs"])
    cluster = usage.as_text(usage.Usage(**seen["cluster"])) if seen["cluster"] else "no cluster is named"
    return f"{datetime.fromtimestamp(seen['time'], UTC):%H:%M:%S} UTC  {running} running  {cluster}"


def _troubles(seen: Mapping[str, Any]) -> list[str]:
    """The last errors, a line each."""
    return [f"{told['id']}: {told['error']}" for told in seen["runs"] if told["error"]]


def _live(looking: Callable[[], Mapping[str, Any]], every: float) -> None:
    from rich.live import Live

    with Live(_drawn(looking()), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_drawn(looking()), refresh=True)


def _drawn(seen: Mapping[str, Any]) -> Group:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = ("EPOCHS/S", "UNSENT", "DRIVER")
    for name in COLUMNS:
        table.add_column(name, no_wrap=name == "ID", justify="right" if name in numbers else "left")
    for told in seen["runs"]:
        table.add_row(*map(escape, _cells(told)), style=_STYLES.get(told["status"], "dim"))
    errors = [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in _troubles(seen)]
    return Group(Text(_heading(seen)), Text(), table, Text(), *errors)


_STYLES = {"running": "", "silent": "yellow", "failed": "red", "lost": "red"}
