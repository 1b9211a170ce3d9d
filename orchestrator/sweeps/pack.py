"""Packs on Ray: one plain actor a slot hosts many trials. Tune gives every trial a process, so it does not place these.

The ledger hands out trials and judges them as always. A process that dies takes all its trials along; they go on from
their checkpoints, together once more, then each alone, so that one that kills its process fails by itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from orchestrator.cluster.fair_share import Hold
from orchestrator.cluster.preemption import Preempted, this_node
from orchestrator.cluster.train_group import bundle
from orchestrator.config.spec import Resources, SweepSpec
from orchestrator.errors import RunFailed, one_line
from orchestrator.runs import reports, worker
from orchestrator.runs.train import RETRIES
from orchestrator.storage.records import RunFolder
from orchestrator.sweeps.pack_plan import PackRunner
from orchestrator.sweeps.trial_manager import Ledger

TOGETHER_AGAIN = 1
"""Deaths after which trials are still put together."""

_LOOK_SECONDS = 0.2


def run_packs(
    spec: SweepSpec,
    folder: RunFolder,
    ledger: Ledger,
    capacities: Sequence[int],
    hold: Hold,
    lost: Callable[[str], None] = lambda cause: None,
) -> None:
    """Run the sweep's trials, up to so many in each process, until the ledger has none left or says stop.

    ``hold`` says how many of the processes there may be; ``lost`` gets the cause of each one's death. Raises RunFailed
    when one can not be had, or fails as a whole.
    """
    _Packs(spec, folder, ledger, capacities, hold, lost).run()


class PackActor:
    """A process of one slot's devices, with a runner in it."""

    def __init__(self, resources: Resources) -> None:
        self._resources, self._stopping = resources, False
        self._runner: PackRunner | None = None

    def step(
        self, begin: Sequence[Mapping[str, Any]], drop: Sequence[int], stopping: bool
    ) -> tuple[list[tuple[int, dict[str, Any]]], set[int]]:
        """A step of the runner, first without some trials and with others; its payloads, and who is under way.

        The device is taken with the first trials: a process that hangs there is not one that is not up yet. Raises
        Preempted when its node is being taken away.
        """
        self._stopping = stopping
        if self._runner is None:
            if not begin:
                return [], set()
            going = self._going = this_node()
            self._runner = PackRunner(worker.take_device(self._resources), stop=lambda: self._stopping or going())
        self._runner.pace.answered()
        for unit in drop:
            self._runner.drop(unit)
        for config in begin:
            self._runner.begin(config)
        said = self._runner.step()
        if self._going():  # all have saved, and say it again when they go on
            raise Preempted
        self._runner.pace.sent()
        return said, self._runner.units


class _Host:
    """A slot: its actor as long as that lives, and the trials that are there."""

    def __init__(self, resources: Resources, size: int) -> None:
        self._resources, self.size = resources, size
        self.trials: dict[int, dict[str, Any]] = {}
        self.alone = False
        self.starts = 0
        """Since an actor last answered."""
        self.up = False
        self.answer: ray.ObjectRef | None = None

    def start(self) -> None:
        need = bundle(self._resources)
        cls = ray.remote(PackActor).options(num_cpus=need["CPU"], num_gpus=need.get("GPU", 0))
        self._actor = cls.remote(self._resources)
        self._begin: list[dict[str, Any]] = []
        self._drop: list[int] = []
        self.starts += 1
        self.asked: float | None = None  # of this actor, since it came up
        self.answer = self._actor.step.remote([], [], False)
        self.up = True

    def rest(self) -> None:
        """Give the devices back until :meth:`start`."""
        if self.up:
            self.kill()
        self.up, self.answer, self.starts = False, None, 0

    def take(self, config: dict[str, Any]) -> None:
        self.trials[config["number"]] = config
        self._begin.append(config)

    def drop(self, unit: int) -> None:
        del self.trials[unit]
        self._drop.append(unit)

    def ask(self, stopping: bool) -> None:
        self.asked = time.monotonic()
        self.answer = self._actor.step.remote(self._begin, self._drop, stopping)
        self._begin, self._drop = [], []

    def kill(self) -> None:
        ray.kill(self._actor)


class _Packs:
    """The driver's side: fills hosts, hands what they say to the ledger, and replaces those that die."""

    def __init__(
        self,
        spec: SweepSpec,
        folder: RunFolder,
        ledger: Ledger,
        capacities: Sequence[int],
        hold: Hold,
        lost: Callable[[str], None],
    ) -> None:
        self._hold, self._lost, self._finished = hold, lost, False
        self._folder, self._ledger, self._timeout = folder, ledger, spec.search.trial_timeout
        self._deaths: Counter[int] = Counter()
        self._orphans: deque[dict[str, Any]] = deque()
        self._suspects: deque[dict[str, Any]] = deque()
        self._hosts = [_Host(spec.resources, size) for size in capacities]

    def run(self) -> None:
        try:
            while self._ask():
                self._ledger.ask_ahead()
                answers = {host.answer: host for host in self._hosts if host.answer is not None}
                ready, _ = ray.wait(list(answers), num_returns=1, timeout=_LOOK_SECONDS)
                for answer in ready:
                    self._take(answers[answer])
                self._end_silence()
        finally:
            for host in self._hosts:
                host.rest()

    def _share(self) -> list[_Host]:
        """The hosts that may be; of the others, those with trials end these first, and those without rest."""
        hosts = sorted(self._hosts, key=lambda host: (not host.trials, not host.up))
        of_use = len(hosts)
        if self._finished:
            of_use = sum(bool(host.trials) for host in hosts) + len(self._orphans) + len(self._suspects)
        may = self._hold(min(of_use, len(hosts)))
        for host in hosts[may:]:
            if not host.trials:
                host.rest()
        for host in hosts[:may]:
            if not host.up:
                host.start()
        return hosts[:may]

    def _ask(self) -> bool:
        """Set every idle host to work; False when no trial is anywhere and none will come."""
        stopping, may = self._ledger.stopping(), self._share()
        for host in self._hosts:
            if host.answer is None:
                if not stopping and host in may:
                    self._fill(host)
                if host.trials:
                    host.ask(stopping)
        if any(host.trials for host in self._hosts):
            return True
        over = stopping or (self._ledger.exhausted and not self._orphans and not self._suspects)
        return not over and any(host.answer is not None for host in self._hosts)

    def _fill(self, host: _Host) -> None:
        if not host.trials:
            host.alone = bool(self._suspects)
            if host.alone:
                host.take(self._suspects.popleft())
        while not host.alone and len(host.trials) < host.size:
            config = self._orphans.popleft() if self._orphans else self._ledger.next()
            if config is None:
                self._finished = self._ledger.exhausted
                return
            host.take(config)

    def _take(self, host: _Host) -> None:
        answer, host.answer = host.answer, None
        try:
            said, there = ray.get(answer)
        except Preempted:
            host.kill()
            self._orphans += host.trials.values()
            host.trials = {}
            host.start()
            return
        except reports.DeviceLost as error:
            host.kill()
            self._bury(host, one_line(getattr(error, "cause", error)))  # without Ray's wrapping
            return
        except ray.exceptions.RayTaskError as error:  # no trial's fault: it would do so again
            raise reports.failed_there(self._folder, error) from error
        except ray.exceptions.RayError as error:
            if host.starts > RETRIES:
                raise RunFailed(self._folder.id, one_line(error), str(self._folder.log)) from error
            self._bury(host, reports.death(str(error)))
            return
        host.starts = 0
        for unit, payload in said:
            if self._ledger.result(unit, payload) and unit in host.trials:
                host.drop(unit)
        host.trials = {unit: config for unit, config in host.trials.items() if unit in there}

    def _bury(self, host: _Host, cause: str) -> None:
        """Put a dead host's trials aside, give those up that have died too often, and start it anew."""
        self._lost(cause)
        trials, host.trials = host.trials, {}
        self._deaths.update(trials.keys())
        for unit, config in trials.items():
            if self._deaths[unit] > RETRIES:
                self._ledger.died(unit, f"{cause} {self._deaths[unit]} times")
            elif self._deaths[unit] > TOGETHER_AGAIN:
                self._suspects.append(config)
            else:
                self._orphans.append(config)
        host.start()

    def _end_silence(self) -> None:
        """Kill a host that is long silent; whom it had alone has failed."""
        for host in self._hosts:
            if self._timeout is None or host.answer is None or host.asked is None:
                continue
            if time.monotonic() - host.asked > self._timeout:
                host.kill()
                if host.alone:
                    for unit in list(host.trials):
                        self._ledger.died(unit, f"no report for {self._timeout:g} s")
                    host.trials = {}
                self._bury(host, "its process was silent and killed")
