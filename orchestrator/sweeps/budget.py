"""Device-hour budget of a sweep. No trial starts that would exceed it; when it is spent, all trials stop."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from orchestrator.config.spec import SweepSpec
from orchestrator.storage import usage_log
from orchestrator.storage.records import RunFolder

WARNING = 0.8


class Budget:
    """Device seconds of a sweep's trials from start to end, including those of earlier drivers.

    Devices are GPUs if the trials have any, else CPUs. The winner's refit does not count.
    """

    def __init__(self, spec: SweepSpec, folder: RunFolder) -> None:
        self.devices = spec.resources.devices
        """Devices of a usual trial; a fraction when trials share them."""
        hours = spec.search.max_device_hours
        self._seeds = spec.search.seeds
        self._limit = None if hours is None else hours * 3600
        gpus = spec.resources.gpus_per_worker > 0
        earlier = [span for span in usage_log.spans(folder) if span.holder.startswith("trial")]
        self._since: dict[int, tuple[float, float, float]] = {}
        """Since when a running seed run is charged, how many devices, and its device seconds before."""
        self._costs: dict[int, float] = {}
        self._seconds: dict[int, float] = defaultdict(float)
        """Time in which a seed run held devices. Its cost does not tell it: it may have shared them for a while."""
        for span in earlier:
            number, _, seed = span.holder.removeprefix("trial ").partition(" seed ")
            seed_run = int(number) * self._seeds + int(seed or 0)
            cost = 3600 * (span.gpu_hours if gpus else span.cpu_hours)
            self._costs[seed_run] = self._costs.get(seed_run, 0.0) + cost
            self._seconds[seed_run] += span.end - span.start
        self.complete: set[int] = set()
        """Seed runs that ran to their end. Repeats of finalists cost as much: none is pruned."""
        self._spent = sum(self._costs.values())
        self._warned = self._limit is not None and self._spent >= WARNING * self._limit

    def start(self, seed_run: int, devices: float | None = None) -> None:
        """Charge a seed run ``devices`` from now on, by default those of a usual trial."""
        before = self._running(seed_run) if seed_run in self._since else 0.0
        now = time.monotonic()
        self._seconds[seed_run] += now - self._since[seed_run][0] if seed_run in self._since else 0.0
        self._since[seed_run] = now, self.devices if devices is None else devices, before

    def stop(self, seed_run: int) -> None:
        if seed_run in self._since:
            cost = self._running(seed_run)
            self._seconds[seed_run] += time.monotonic() - self._since.pop(seed_run)[0]
            self._spent += cost
            self._costs[seed_run] = self._costs.get(seed_run, 0.0) + cost

    def device_seconds_of(self, seed_run: int) -> float:
        """Device seconds of a stopped seed run, those under earlier drivers included."""
        return self._costs.get(seed_run, 0.0)

    @property
    def used(self) -> float:
        """Device seconds so far, running trials included."""
        return self._spent + sum(map(self._running, self._since))

    def allows_another(self, reserved: int = 0, begun: Iterable[int] = (), *, repeat: bool = False) -> bool:
        """Whether a trial of average cost fits in addition to what the running trials will still need.

        Both are counted with all of their seeds: a trial whose last seed is cut has no result.

        ``reserved``: number of repeats of finalists that must fit as well. ``begun``: the seed runs that have begun and
        not ended, those that wait for devices included. ``repeat``: it is a finalist's.
        """
        if self._limit is None:
            return True
        spent: dict[int, float] = defaultdict(float)  # of trials with all of their seeds
        for seed_run, cost in self._costs.items():
            spent[seed_run // self._seeds] += cost
        running = {seed_run // self._seeds for seed_run in (*self._since, *begun)}
        ended = [cost for number, cost in spent.items() if number not in running]
        usual = fmean(ended or spent.values() or [0.0])
        for seed_run in self._since:
            spent[seed_run // self._seeds] += self._running(seed_run)
        left = sum(max(0.0, usual - spent[number]) for number in running)
        own = self.cost_of_repeat if repeat else usual
        return self.used + left + own + self.cost_of_repeat * reserved < self._limit

    @property
    def cost_of_repeat(self) -> float:
        """Device seconds of a run to the end: the mean of the complete ones, else of all, 0 before the first end."""
        return self._to_the_end(self._costs)

    def seconds(self, reserved: int, at_once: int) -> float:
        """Time that a run to the end takes, and after it ``reserved`` further ones, ``at_once`` of them together."""
        return self._to_the_end(self._seconds) * (1 + math.ceil(reserved / max(1, at_once)))

    def _to_the_end(self, values: Mapping[int, float]) -> float:
        complete = [values[seed_run] for seed_run in self.complete if seed_run in self._costs]
        return fmean(complete or [values[seed_run] for seed_run in self._costs] or [0.0])

    def is_spent(self) -> bool:
        return self._limit is not None and self.used >= self._limit

    def warns(self) -> bool:
        """True once, when 80% of the budget is spent."""
        if self._limit is None or self._warned or self.used < WARNING * self._limit:
            return False
        self._warned = True
        return True

    def _running(self, seed_run: int) -> float:
        since, devices, before = self._since[seed_run]
        return before + (time.monotonic() - since) * devices
