"""The interval between a trial's reports: a second, or longer when its driver is busy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from orchestrator.engine import loop

LONGEST_SECONDS = 10.0
"""Maximum interval. Checkpoints come with reports."""

WAITING = 0.01
"""Maximum share of a trial's time spent waiting for answers to its reports."""

WAITS, LEAST_WAITS = 5, 3
"""The median is over the last ``WAITS`` waits, at least ``LEAST_WAITS``: at first all trials report at once."""


class ReportPace:
    """The interval between a trial's reports: as the driver requests, and longer if its answers are slow.

    Reports at rungs are sent when they are due, and the waits for their answers do not count: when all trials reach a
    rung at once, some wait long.
    """

    def __init__(self, request: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits: deque[float] = deque(maxlen=WAITS)
        self._sent: float | None = None
        self.ask(request or {})

    def ask(self, request: Mapping[str, float]) -> None:
        """Use the driver's interval from now on: ``seconds`` between reports, at most ``longest``."""
        self._seconds = request.get("seconds", 0.0)
        self._longest = request.get("longest", LONGEST_SECONDS)

    def seconds(self) -> float:
        """The current interval."""
        waited = median(self._waits) / WAITING if len(self._waits) >= LEAST_WAITS else 0.0
        return max(loop.REPORT_SECONDS, min(self._longest, max(self._seconds, waited)))

    def sent(self) -> None:
        """Note that a report was sent that is not at a rung."""
        self._sent = self._clock()

    def answered(self) -> None:
        """Note that the trial continues."""
        if self._sent is not None:
            self._waits.append(self._clock() - self._sent)
        self._sent = None
