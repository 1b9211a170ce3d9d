"""How busy a sweep's driver is with reports, and how often its trials may report."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.engine import loop
from orchestrator.runs.report_pace import LONGEST_SECONDS

TARGET = 0.5
"""The utilisation above which trials are asked to report less often: at twice of it reports would queue up."""

WINDOW_SECONDS = 30.0
LEAST_REPORTS = 20

FIRST_GUESS = 0.016
"""Seconds that a report costs a slow driver: assumed while fewer than ``LEAST_REPORTS`` have come."""

TIMEOUT_PART = 0.25
"""A trial reports so much sooner than it would be taken for a silent one."""


class DriverLoad:
    """Busy seconds of the driver over those that passed, in the last half a minute.

    Where trials train in other processes, busy are the CPU seconds of this one and what it waits for the disk within a
    report; where they train in this one, the seconds within reports and suggestions.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._served = self._blocked = 0.0
        self._reports = 0
        self._at_once = 0
        """Trials in other processes; 0 where they train here."""
        self._samples: deque[tuple[float, float, int]] = deque([self._sample()])

    def trains_elsewhere(self, at_once: int) -> None:
        """So many trials will train at once, in other processes."""
        self._at_once = at_once
        self._samples = deque([self._sample()])

    @contextmanager
    def serving(self, reports: int = 0) -> Iterator[None]:
        """The driver is at work within the block, on so many reports."""
        began, used = self._clock(), self._cpu()
        try:
            yield
        finally:
            took = self._clock() - began
            self._served += took
            self._blocked += max(0.0, took - (self._cpu() - used))
            self._reports += reports
            self._note()

    def utilisation(self) -> float | None:
        """From 0 to 1; None in the first second. Any thread may ask."""
        (then, busy, _), now = self._samples[0], self._sample()
        return min(1.0, (now[1] - busy) / (now[0] - then)) if now[0] - then >= 1.0 else None

    def pace(self, timeout: float | None) -> dict[str, float]:
        """What a trial that begins now is asked, as :class:`~orchestrator.runs.report_pace.ReportPace` takes it.

        ``timeout``: seconds of silence after which its process would be killed.
        """
        (_, busy, before), now = self._samples[0], self._sample()
        count = now[2] - before
        cost = (now[1] - busy) / count if count >= LEAST_REPORTS else FIRST_GUESS
        wanted = self._at_once * cost / TARGET
        longest = LONGEST_SECONDS if timeout is None else min(LONGEST_SECONDS, timeout * TIMEOUT_PART)
        return {"seconds": 0.0 if wanted <= loop.REPORT_SECONDS else min(wanted, longest), "longest": longest}

    def _sample(self) -> tuple[float, float, int]:
        busy = self._cpu() + self._blocked if self._at_once else self._served
        return self._clock(), busy, self._reports

    def _note(self) -> None:
        """Keep a sample a second, and the newest of those before the window as its beginning."""
        if self._clock() - self._samples[-1][0] >= 1.0:
            self._samples.append(self._sample())
        while len(self._samples) > 1 and self._clock() - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()
