"""Device hours: an event file of each run with the times at which it held devices, and sums over runs."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.spec import Resources
from orchestrator.errors import UserError
from orchestrator.storage import disk
from orchestrator.storage.records import RunFolder

By = Literal["trial", "sweep", "workload", "person", "day"]

EVENTS = "events.jsonl"
BEAT_SECONDS = 60.0
KINDS = ("cpus", "gpus")


class UsageLog:
    """Log of one run's device allocations and releases, by ``run``, ``trial 7`` or ``winner``.

    Allocations left open by a dead driver end at its last event, so the hours between a crash and the resume do not
    count. There is one driver at a time (it holds the folder). With a full disk only events are lost.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / EVENTS
        self._open: dict[str, dict[str, float]] = {}
        """Open allocations: their start, and the number of devices of each kind."""
        self._counting = threading.Lock()
        self._wrote = 0.0
        self._clock = time.time() - time.monotonic()
        disk.drop_half_line(self._file)
        closed, last, left = _replay(_read(self._file))
        for holder in left:
            self._write(last, event="stop", unit=holder)
        ended = [*((start, end) for _, start, end in closed), *((start, last) for start in left.values())]
        self._spent = {kind: sum(start.get(kind, 0) * (end - start["time"]) for start, end in ended) for kind in KINDS}

    def start(self, holder: str, resources: Resources) -> None:
        """Record that ``holder`` acquired its devices."""
        cpus = resources.workers * resources.cpus_per_worker
        gpus = resources.workers * resources.gpus_per_worker
        now = self._now()
        self._settle(holder, now)
        with self._counting:
            self._open[holder] = {"time": now, "cpus": cpus, "gpus": gpus}
        self._write(now, event="start", unit=holder, cpus=cpus, gpus=gpus)

    def stop(self, holder: str) -> None:
        """Record that ``holder`` released its devices. Does nothing if it holds none."""
        if holder in self._open:
            now = self._now()
            self._settle(holder, now)
            self._write(now, event="stop", unit=holder)

    def seconds(self) -> dict[str, float]:
        """Device seconds since the beginning, as ``cpus`` and ``gpus``. Thread-safe."""
        now = self._now()
        with self._counting:
            return {
                kind: self._spent[kind] + sum(held[kind] * (now - held["time"]) for held in self._open.values())
                for kind in KINDS
            }

    def beat(self) -> None:
        """Record that allocations are still live, at most once a minute. Bounds the error after a killed driver."""
        if self._open and self._now() - self._wrote >= BEAT_SECONDS:
            self._write(self._now(), event="beat")

    @contextmanager
    def holding(self, holder: str, resources: Resources) -> Iterator[None]:
        """Record that ``holder`` holds its devices within the block."""
        self.start(holder, resources)
        try:
            yield
        finally:
            self.stop(holder)

    def close(self) -> None:
        for holder in sorted(self._open):
            self.stop(holder)

    def _now(self) -> float:
        """Unix seconds by the clock as it was when this driver began: it may be set while devices are held."""
        return self._clock + time.monotonic()

    def _settle(self, holder: str, now: float) -> None:
        with self._counting:
            if held := self._open.pop(holder, None):
                for kind in KINDS:
                    self._spent[kind] += held[kind] * (now - held["time"])

    def _write(self, moment: float, **event: Any) -> None:
        self._wrote = moment
        with suppress(OSError):
            disk.append_lines(self._file, [json.dumps({"time": round(moment, 3), **event}) + "\n"])


@dataclass(frozen=True, slots=True)
class Span:
    """``holder`` of the run or sweep ``id`` held ``cpus`` and ``gpus`` from ``start`` to ``end`` (Unix seconds)."""

    id: str
    holder: str
    start: float
    end: float
    cpus: float
    gpus: float

    @property
    def cpu_hours(self) -> float:
        return self.cpus * (self.end - self.start) / 3600

    @property
    def gpu_hours(self) -> float:
        return self.gpus * (self.end - self.start) / 3600

    def after(self, moment: float) -> Span | None:
        """The part of the span since ``moment``; None if there is none."""
        start = max(self.start, moment)
        return replace(self, start=start) if start < self.end else None


def spans(folder: RunFolder) -> list[Span]:
    """All spans of a run or sweep; open ones end now or at the driver's last event."""
    events = _read(folder.path / EVENTS)
    closed, last, left = _replay(events)
    end = last
    if left and folder.status() == "running":
        end = max(last, time.time())
    elif left and folder.record.get("ended"):
        end = max(last, datetime.fromisoformat(folder.record["ended"]).timestamp())
    ended = closed + [(holder, start, end) for holder, start in left.items()]
    return [Span(folder.id, holder, start["time"], end, start["cpus"], start["gpus"]) for holder, start, end in ended]


def mean_devices(folder: RunFolder) -> float:
    """Mean number of devices held while any were held: GPUs if there were any, else CPUs."""
    held_spans = spans(folder)
    held = sum(span.end - span.start for span in held_spans) / 3600
    return (sum(s.gpu_hours for s in held_spans) or sum(s.cpu_hours for s in held_spans)) / held if held else 0.0


def table(folders: Iterable[RunFolder], by: By, since: float | None = None) -> tuple[list[dict[str, Any]], int]:
    """One row for each trial, sweep (or run), workload, person or day: name, ``cpu_hours``, ``gpu_hours``, ``runs``.

    Days are in this machine's time zone. Rows are sorted by GPU hours, then CPU hours, highest first; days by date.
    Also returns the number of runs without an event file, which early versions did not write.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    runs: dict[str, set[str]] = defaultdict(set)
    silent = 0
    for folder in folders:
        if not (folder.path / EVENTS).exists():
            silent += 1
            continue
        for span in spans(folder):
            kept = span if since is None else span.after(since)
            if kept is None:
                continue
            for part in _days(kept) if by == "day" else (kept,):
                name = _name(folder, part, by)
                runs[name].add(folder.id)
                sums[name][0] += part.cpu_hours
                sums[name][1] += part.gpu_hours
    rows = [{by: name, "cpu_hours": c, "gpu_hours": g, "runs": len(runs[name])} for name, (c, g) in sums.items()]
    if by == "day":
        return sorted(rows, key=lambda row: str(row["day"])), silent
    return sorted(rows, key=lambda row: (-float(row["gpu_hours"]), -float(row["cpu_hours"]), str(row[by]))), silent


def moment(text: str) -> float:
    """A date or time as Unix seconds; in this machine's time zone if it has none. Raises UserError."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UserError(
            "The date is not valid", got=repr(text), allowed="2026-11-21, or 2026-11-21T09:30", fix="Correct --since"
        ) from None


def _name(folder: RunFolder, span: Span, by: By) -> str:
    names = {
        "trial": f"{folder.id} {span.holder}",
        "sweep": folder.id,
        "workload": str(folder.record["workload"]),
        "person": str(folder.record.get("user", "unknown")),
        "day": datetime.fromtimestamp(span.start).date().isoformat(),
    }
    return names[by]


def _days(span: Span) -> Iterator[Span]:
    """Split a span at midnight."""
    start = span.start
    while start < span.end:
        midnight = datetime.combine(datetime.fromtimestamp(start).date() + timedelta(days=1), datetime.min.time())
        end = min(span.end, midnight.timestamp())
        yield replace(span, start=start, end=end)
        start = end


Event = dict[str, Any]


def _replay(events: list[Event]) -> tuple[list[tuple[str, Event, float]], float, dict[str, Event]]:
    """Closed spans as (unit, its start, end), the time of the last event, and the starts that are still open."""
    closed: list[tuple[str, Event, float]] = []
    left: dict[str, Event] = {}
    last = 0.0
    for event in events:
        holder = event.get("unit")
        if event["event"] != "beat" and holder in left:
            start = left.pop(holder)
            closed.append((holder, start, max(start["time"], event["time"])))  # the clock may have been set back
        if event["event"] == "start":
            left[str(holder)] = event
        last = max(last, event["time"])
    return closed, last, left


def _read(file: Path) -> list[Event]:
    """Read the events; skip incomplete or damaged lines."""
    if not file.exists():
        return []
    lines = file.read_text(errors="replace").splitlines()
    with suppress(ValueError):  # all at once if none is damaged: a sweep of 5,000 trials has 10,000
        values = json.loads(f"[{','.join(lines)}]")
        if len(values) == len(lines):
            return [event for event in values if _is_event(event)]
    return [event for event in disk.json_lines(file) if _is_event(event)]


def _is_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("time"), float | int)
        and event.get("event") in ("start", "stop", "beat")
        and isinstance(event.get("unit", ""), str)
        and (event["event"] != "start" or all(isinstance(event.get(kind), float | int) for kind in KINDS))
    )
