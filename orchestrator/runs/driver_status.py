"""Status of a driver, published every two seconds to a file in the run's folder and, on a cluster, to Ray's metrics.

A thread publishes it. If the disk is full or the cluster does not answer, the numbers are lost, and training goes on.
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
from orchestrator.storage import disk, lease, remote
from orchestrator.storage.names import STATUS_FILE
from orchestrator.storage.records import RunFolder

FORMAT = 1
INTERVAL_SECONDS = 2.0
WINDOW = 30
"""Changes of the epoch count over which the rate is computed: about a minute for short epochs."""


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """Status of a run or sweep. None means unknown.

    ``done`` of ``target`` counts the trials of a sweep, or the epochs of a run. ``trials`` counts a sweep's trials by
    state. ``best`` has the best value of the objective under its name, ``best_params`` the parameters of that trial.
    ``device_seconds`` are the seconds that ``cpus`` and ``gpus`` were held since the start. ``trouble`` names the last
    failed trial and its cause. ``driver_utilisation`` is from 0 to 1. ``expected_gain`` is that of further trials
    (``--until-gain``).
    """

    done: int = 0
    target: int = 0
    trials: Mapping[str, int] = field(default_factory=dict)
    best: Mapping[str, Any] | None = None
    seconds_left: float | None = None
    device_seconds: Mapping[str, float] = field(default_factory=dict)
    trouble: str | None = None
    driver_utilisation: float | None = None
    best_params: Mapping[str, Any] | None = None
    expected_gain: str | None = None


class StatusPublisher:
    """Context manager that publishes the status of one driver.

    ``unsent`` returns the number of reports that wait for MLflow. ``about`` is published along (queue, priority).
    """

    def __init__(
        self,
        folder: RunFolder,
        unsent: Callable[[], int] = lambda: 0,
        about: Mapping[str, Any] | None = None,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._folder = folder
        self._unsent = unsent
        self._about = dict(about or {})
        self._interval = interval
        self._current_status: Callable[[], DriverStatus] = DriverStatus
        self.last = DriverStatus()
        """The last published status."""
        self._epochs = 0
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], WINDOW)
        self._exported: Exported | None = None  # None without a cluster
        self._publishing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> StatusPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident:  # not if the driver failed before it started
            self._thread.join()
            self._publish()

    def set_source(self, current_status: Callable[[], DriverStatus]) -> None:
        """Call ``current_status`` for the status from now on, in another thread."""
        self._current_status = current_status

    def trained(self, epochs: int) -> None:
        """Count further finished epochs, of any trial."""
        self._epochs += epochs

    @contextmanager
    def on_cluster(self) -> Iterator[None]:
        """Export the numbers through the connected Ray cluster within the block, and once more at its end."""
        record = self._folder.record
        with self._publishing, suppress(Exception):
            self._exported = Exported(self._folder.id, record["kind"], record["workload"])
        try:
            yield
        finally:
            self._publish()
            with self._publishing:  # not while a status is being published
                self._exported = None

    def _beat(self) -> None:
        wait = min(0.5, self._interval)
        while not self._ended.wait(wait):
            self._publish()
            wait = self._interval

    def _publish(self) -> None:
        with self._publishing, suppress(Exception):  # training goes on without numbers
            status = self._current_status()
            unsent = self._unsent()
            self.last = status
            values = {
                "format": FORMAT,
                "time": round(time.time(), 3),
                **self._about,
                **asdict(status),
                "epochs": self._epochs,
                "epochs_per_second": self._rate(),
                "spool": unsent,
            }
            if status.seconds_left is None and not status.trials and values["epochs_per_second"]:
                values["seconds_left"] = round((status.target - status.done) / values["epochs_per_second"], 1)
            with suppress(OSError):
                disk.write_json(self._folder.path / STATUS_FILE, values, durable=False)
            if self._exported:
                self._exported.update(status.trials, self._epochs, status.device_seconds, unsent)

    def _rate(self) -> float:
        """Epochs per second over the last changes of their number."""
        now = time.monotonic()
        if self._epochs != self._seen[-1][1]:
            self._seen.append((now, self._epochs))
        since, before = self._seen[0]
        return round((self._epochs - before) / (now - since), 4) if now > since else 0.0


def read(folder: RunFolder) -> dict[str, Any]:
    """The last published status. Empty if there is none, or in another format."""
    storage = remote.location_of(folder.path)
    with suppress(OSError, ValueError):
        elsewhere = storage.read(STATUS_FILE) if storage and not lease.driven_here(folder.path) else None
        values = json.loads(elsewhere or (folder.path / STATUS_FILE).read_bytes())
        if isinstance(values, dict) and values.get("format") == FORMAT:
            return values
    return {}
