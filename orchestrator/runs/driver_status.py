"""What a driver says of itself every two seconds: to a file beside its record, and to Ray's metrics on a cluster.

Its own thread says it, from numbers that the driver keeps anyway. A disk that is full or a cluster in trouble costs
the numbers, never the training.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.runs.prometheus import Exported
from orchestrator.storage import lease, remote
from orchestrator.storage.names import PULSE
from orchestrator.storage.records import RunFolder

FORMAT = 1
INTERVAL_SECONDS = 2.0
WINDOW = 30
"""Changes of the number of epochs that a rate is taken over: about a minute of short ones, 30 of long ones."""


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """How a run or sweep stands.

    ``done`` of ``target`` counts a sweep's trials, a run's epochs. ``trials`` are a sweep's by state, ``best`` the
    value of the objective so far under its name, ``device_seconds`` what was held of ``cpus`` and ``gpus`` since the
    beginning, ``trouble`` the last trial that failed and why. ``driver_utilisation`` says how busy a sweep's driver is
    with reports, from 0 to 1. What is None is not known.
    """

    done: int = 0
    target: int = 0
    trials: Mapping[str, int] = field(default_factory=dict)
    best: Mapping[str, Any] | None = None
    seconds_left: float | None = None
    device_seconds: Mapping[str, float] = field(default_factory=dict)
    trouble: str | None = None
    driver_utilisation: float | None = None


class StatusPublisher:
    """A context manager around one driver's work. Whoever trains tells :meth:`trained`, and is asked by :meth:`of`.

    ``unsent`` tells how many reports wait for MLflow; ``about`` is said along (queue, priority).
    """

    def __init__(
        self,
        folder: RunFolder,
        unsent: Callable[[], int] = lambda: 0,
        about: Mapping[str, Any] | None = None,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._folder, self._unsent, self._about, self._interval = folder, unsent, dict(about or {}), interval
        self._current_status: Callable[[], DriverStatus] = DriverStatus
        self._epochs = 0
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], WINDOW)
        self._exported: Exported | None = None  # None while no cluster is connected
        self._telling = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> StatusPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident:  # not of a driver that failed before it began
            self._thread.join()
            self._tell()

    def of(self, current_status: Callable[[], DriverStatus]) -> None:
        """From now on ``current_status`` is called, from another thread than the caller's."""
        self._current_status = current_status

    def trained(self, epochs: int) -> None:
        """So many epochs more are done, of whichever trial."""
        self._epochs += epochs

    @contextmanager
    def on_cluster(self) -> Iterator[None]:
        """While the body runs, the connected Ray exports the numbers; the last ones are those at its end."""
        record = self._folder.record
        with self._telling, suppress(Exception):
            self._exported = Exported(self._folder.id, record["kind"], record["workload"])
        try:
            yield
        finally:
            self._tell()
            with self._telling:  # whoever leaves the cluster must not be in the middle of a word
                self._exported = None

    def _beat(self) -> None:
        wait = min(0.5, self._interval)
        while not self._ended.wait(wait):
            self._tell()
            wait = self._interval

    def _tell(self) -> None:
        with self._telling, suppress(Exception):  # a run is worth more than its numbers
            status, unsent = self._current_status(), self._unsent()
            told = {
                "format": FORMAT,
                "time": round(time.time(), 3),
                **self._about,
                **asdict(status),
                "epochs": self._epochs,
                "epochs_per_second": self._rate(),
                "spool": unsent,
            }
            if status.seconds_left is None and not status.trials and told["epochs_per_second"]:
                told["seconds_left"] = round((status.target - status.done) / told["epochs_per_second"], 1)
            self._write(told)
            if self._exported:
                self._exported.tell(status.trials, self._epochs, status.device_seconds, unsent)

    def _rate(self) -> float:
        """Epochs a second, over the last changes of their number."""
        now = time.monotonic()
        if self._epochs != self._seen[-1][1]:
            self._seen.append((now, self._epochs))
        since, before = self._seen[0]
        return round((self._epochs - before) / (now - since), 4) if now > since else 0.0

    def _write(self, told: Mapping[str, Any]) -> None:
        partial = self._folder.path / f".{PULSE}.partial"
        with suppress(OSError):
            partial.write_text(json.dumps(told))
            partial.replace(self._folder.path / PULSE)


def read(folder: RunFolder) -> dict[str, Any]:
    """What a driver said last; empty where it has not said anything yet, or in another format."""
    place = remote.behind(folder.path)
    with suppress(OSError, ValueError):
        elsewhere = place.read(PULSE) if place and not lease.driven_here(folder.path) else None
        told = json.loads(elsewhere or (folder.path / PULSE).read_bytes())
        if isinstance(told, dict) and told.get("format") == FORMAT:
            return told
    return {}
