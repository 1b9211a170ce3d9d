"""How often a trial reports: every second, or less often where its driver has many."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from orchestrator.engine import loop

LONGEST_SECONDS = 10.0
"""Without a report, at most; checkpoints come with reports."""

WAITING = 0.01
"""The share of a trial that may go into waiting for answers to its reports."""

WAITS, LEAST_WAITS = 5, 3
"""The last waits whose median counts, and how many there must be: all trials of a sweep report at once at first."""


class ReportPace:
    """The interval between a trial's reports: what the driver asked for, longer where its answers take long.

    A report at which the trial is judged comes when it is due, whatever the interval, and its answer is not counted:
    where all trials come to be judged at once, some wait for long.
    """

    def __init__(self, asked: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits: deque[float] = deque(maxlen=WAITS)
        self._sent: float | None = None
        self.ask(asked or {})

    def ask(self, asked: Mapping[str, float]) -> None:
        """Follow the driver from now on: ``seconds`` between two reports, at the ``longest``."""
        self._seconds, self._longest = asked.get("seconds", 0.0), asked.get("longest", LONGEST_SECONDS)

    def seconds(self) -> float:
        """The interval, now."""
        waited = median(self._waits) / WAITING if len(self._waits) >= LEAST_WAITS else 0.0
        return max(loop.REPORT_SECONDS, min(self._longest, max(self._seconds, waited)))

    def sent(self) -> None:
        """A report was sent that no one had to have now."""
        self._sent = self._clock()

    def answered(self) -> None:
        """The trial goes on."""
        if self._sent is not None:
            self._waits.append(self._clock() - self._sent)
        self._sent = None
