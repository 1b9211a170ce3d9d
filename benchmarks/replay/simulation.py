"""Replay a scheduler on recorded trials, with several workers, as a discrete-event simulation."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.replay.recording import Array, Recording
from orchestrator.search.schedulers import Observed, Scheduler
from orchestrator.search.unit_values import UnitValues

Observe = Callable[[int, UnitValues], None]
"""Receives trial and values of units, before the scheduler decides."""


@dataclass
class Replay:
    """What happened: when each complete trial ended, and which trials were stopped or never started."""

    recording: Recording
    order: Array
    ends: list[tuple[float, int]] = field(default_factory=list)
    """Device seconds since the start, and the trial (an index of the recording), of each complete trial."""
    stopped: list[int] = field(default_factory=list)
    started: int = 0

    @cached_property
    def finished(self) -> list[int]:
        """The complete trials."""
        return [trial for _, trial in self.ends]

    def complete_at(self, device_seconds: float) -> list[int]:
        """The trials that were complete after so many device seconds."""
        return [trial for seconds, trial in self.ends if seconds <= device_seconds]

    def stopped_winners(self) -> int:
        """Number of stopped trials whose value would have been better than that of every complete trial."""
        best = self.recording.values.max(axis=1)
        ended = max((best[trial] for trial in self.finished), default=-np.inf)
        return sum(bool(best[trial] > ended) for trial in self.stopped)


def replay(
    recording: Recording,
    order: Sequence[int] | Array,
    scheduler: Scheduler | None,
    *,
    workers: int,
    device_seconds: float,
    rungs: Sequence[int],
    observe: Observe | None = None,
) -> Replay:
    """Train the trials in ``order`` until so many device seconds were used. ``rungs`` are epochs of the recording."""
    count = len(recording.epochs)
    at_rung = {index: epoch for index, epoch in enumerate(recording.epochs[:-1]) if epoch in rungs}
    # Number of times that the recorded seconds pass before each epoch.
    parts = np.diff([0, *recording.epochs]) / int(recording.about["every"])
    best_index = _best_so_far(recording)
    result = Replay(recording, np.asarray(order))
    trials: dict[int, Observed] = {}
    queue: list[tuple[float, int, int]] = []

    def start(now: float) -> None:
        if result.started < len(order):
            number = result.started
            result.started += 1
            trials[number] = Observed()
            heapq.heappush(queue, (now + recording.seconds[order[number]] * parts[0], number, 0))

    for _ in range(workers):
        start(0.0)
    while queue:
        now, number, index = heapq.heappop(queue)
        if now * workers > device_seconds:
            break
        trial = int(order[number])
        if index == count - 1:
            trials[number].is_complete = True
            result.ends.append((now * workers, trial))
            start(now)
            continue
        if (epoch := at_rung.get(index)) is not None:
            trials[number].values[epoch] = float(recording.values[trial, index])
            if observe:
                values = recording.units[trial, best_index[trial, index]].astype(np.float64)
                observe(number, UnitValues(len(values), "", values))
            if scheduler and scheduler.prunes(number, epoch, trials):
                trials[number].is_out = True
                result.stopped.append(trial)
                start(now)
                continue
        heapq.heappush(queue, (now + recording.seconds[trial] * parts[index + 1], number, index + 1))
    return result


def _best_so_far(recording: Recording) -> Array:
    """(T, K): index of the best value up to each index."""
    values = recording.values
    best = np.maximum.accumulate(values, axis=1)
    improved = np.concatenate([np.ones((len(values), 1), bool), values[:, 1:] > best[:, :-1]], axis=1)
    return np.asarray(np.maximum.accumulate(np.where(improved, np.arange(values.shape[1]), 0), axis=1))
