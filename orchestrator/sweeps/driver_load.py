"""Utilisation of a sweep's driver, and the report interval that follows from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from orchestrator.engine import loop
from orchestrator.runs.report_pace import LONGEST_SECONDS

TARGET = 0.5
"""Utilisation above which trials report less often. At 1.0 reports would queue."""

WINDOW_SECONDS = 30.0
LEAST_REPORTS = 20

FIRST_GUESS = 0.016
"""Seconds per report on a slow driver, assumed until ``LEAST_REPORTS`` have arrived."""

TIMEOUT_PART = 0.25
"""Report interval as a part of the trial timeout, so that no trial counts as silent."""


class _Sample(NamedTuple):
    time: float
    busy: float
    reports: int


class DriverLoad:
    """Busy time of the driver as a fraction of the last 30 seconds.

    When trials train in other processes, busy time is the CPU time of this process plus its waits for the disk during
    reports. When they train in this process, it is the time spent on reports and suggestions.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._served = self._blocked = 0.0
        self._reports = 0
        self._at_once = 0
        """Number of trials in other processes; 0 when they train in this one."""
        self._samples: deque[_Sample] = deque([self._sample()])

    def trains_elsewhere(self, at_once: int) -> None:
        """Set the number of trials that train at once in other processes."""
        self._at_once = at_once
        self._samples = deque([self._sample()])

    @contextmanager
    def serving(self, reports: int = 0) -> Iterator[None]:
        """Count the time within the block as busy, spent on ``reports`` reports."""
        began = self._clock()
        used = self._cpu()
        try:
            yield
        finally:
            took = self._clock() - began
            self._served += took
            self._blocked += max(0.0, took - (self._cpu() - used))
            self._reports += reports
            self._note()

    def utilisation(self) -> float | None:
        """Utilisation from 0 to 1, or None in the first second. Thread-safe."""
        first = self._samples[0]
        now = self._sample()
        passed = now.time - first.time
        return min(1.0, (now.busy - first.busy) / passed) if passed >= 1.0 else None

    def pace(self, timeout: float | None) -> dict[str, float]:
        """Report interval of a new trial, as arguments of :class:`~orchestrator.runs.report_pace.ReportPace`.

        ``timeout``: seconds without a report after which its process is killed.
        """
        first = self._samples[0]
        now = self._sample()
        count = now.reports - first.reports
        cost = (now.busy - first.busy) / count if count >= LEAST_REPORTS else FIRST_GUESS
        wanted = self._at_once * cost / TARGET
        longest = LONGEST_SECONDS if timeout is None else min(LONGEST_SECONDS, timeout * TIMEOUT_PART)
        return {"seconds": 0.0 if wanted <= loop.REPORT_SECONDS else min(wanted, longest), "longest": longest}

    def _sample(self) -> _Sample:
        busy = self._cpu() + self._blocked if self._at_once else self._served
        return _Sample(self._clock(), busy, self._reports)

    def _note(self) -> None:
        """Keep one sample per second, and the newest sample before the window as its start."""
        if self._clock() - self._samples[-1].time >= 1.0:
            self._samples.append(self._sample())
        while len(self._samples) > 1 and self._clock() - self._samples[1].time >= WINDOW_SECONDS:
            self._samples.popleft()
