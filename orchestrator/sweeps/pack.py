"""Run packs on Ray: one actor per slot trains many trials. Ray Tune cannot place them: it runs one trial per process.

When a process dies, its trials continue from their checkpoints: once more together, then each alone, so that a trial
that kills its process fails alone.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from orchestrator.cluster.fair_share import SlotLimit
from orchestrator.cluster.preemption import Preempted, this_node
from orchestrator.cluster.train_group import bundle
from orchestrator.config.spec import Resources, SweepSpec
from orchestrator.errors import RunFailed, one_line
from orchestrator.runs import reports, worker
from orchestrator.runs.train import RETRIES
from orchestrator.storage.records import RunFolder
from orchestrator.sweeps.pack_plan import PackRunner
from orchestrator.sweeps.trial_manager import TrialManager

TOGETHER_AGAIN = 1
"""Deaths after which the trials of a process still share one."""

_POLL_SECONDS = 0.2


class PackActor:
    """Actor that runs the trials of one slot on the slot's devices."""

    def __init__(self, resources: Resources, stop: Callable[[], bool] = lambda: False) -> None:
        """``stop`` is called after each epoch; when it returns True, trials save and end."""
        self._resources = resources
        self._stop = stop
        self._stopping = False
        self._runner: PackRunner | None = None

    def step(
        self, begin: Sequence[Mapping[str, Any]], drop: Sequence[int], stopping: bool
    ) -> tuple[list[tuple[int, dict[str, Any]]], set[int]]:
        """Drop and start trials, then advance all of them.

        Returns the reports as (seed run, payload) and the seed runs that are still running. The device is initialised
        with the first trials, so that a hang there counts as silence. Raises Preempted when the node is being taken
        away.
        """
        self._stopping = stopping
        if self._runner is None:
            if not begin:
                return [], set()
            going = self._going = this_node()
            self._runner = PackRunner(
                worker.take_device(self._resources), stop=lambda: self._stopping or going() or self._stop()
            )
        self._runner.pace.answered()
        for seed_run in drop:
            self._runner.drop(seed_run)
        for config in begin:
            self._runner.begin(config)
        payloads = self._runner.step()
        if self._going():  # they report again when they continue
            self.leave(wait=True)
            raise Preempted
        if self._runner.timed:
            self._runner.pace.sent()
        return payloads, self._runner.seed_runs

    def leave(self, wait: bool) -> None:
        """Save and drop all trials. ``wait`` until what they have written is stored."""
        if self._runner:
            self._runner.leave(wait)


class _PackSlot:
    """A slot: its actor while that is alive, and its trials."""

    def __init__(self, resources: Resources, size: int) -> None:
        self._resources = resources
        self.size = size
        self.trials: dict[int, dict[str, Any]] = {}
        self.alone = False
        self.starts = 0
        """Actors started since one last answered."""
        self.up = False
        self.answer: ray.ObjectRef | None = None

    def start(self) -> None:
        need = bundle(self._resources)
        cls = ray.remote(PackActor).options(num_cpus=need["CPU"], num_gpus=need.get("GPU", 0))
        self._actor = cls.remote(self._resources)
        self._begin: list[dict[str, Any]] = []
        self._drop: list[int] = []
        self.starts += 1
        self.called: float | None = None  # when this actor was last called, after its start
        self.answer = self._actor.step.remote([], [], False)
        self.up = True

    def rest(self) -> None:
        """Release the devices until :meth:`start`."""
        if self.up:
            self.kill()
        self.up = False
        self.answer = None
        self.starts = 0

    def take(self, config: dict[str, Any]) -> None:
        self.trials[config["number"]] = config
        self._begin.append(config)

    def drop(self, seed_run: int) -> None:
        del self.trials[seed_run]
        self._drop.append(seed_run)

    def ask(self, stopping: bool) -> None:
        self.called = time.monotonic()
        self.answer = self._actor.step.remote(self._begin, self._drop, stopping)
        self._begin = []
        self._drop = []

    def kill(self) -> None:
        ray.kill(self._actor)


class Packs:
    """The driver's side: fills the slots, passes reports to the manager, and replaces dead actors.

    ``capacities`` gives the trials of each process, ``slot_limit`` how many processes may exist. ``lost`` is called
    with the cause of each process' death.
    """

    def __init__(
        self,
        spec: SweepSpec,
        folder: RunFolder,
        manager: TrialManager,
        capacities: Sequence[int],
        slot_limit: SlotLimit,
        lost: Callable[..., None] = lambda cause, *seed_runs: None,
    ) -> None:
        self._slot_limit = slot_limit
        self._lost = lost
        self._finished = False
        self._folder = folder
        self._manager = manager
        self._timeout = spec.search.trial_timeout
        self._deaths: Counter[int] = Counter()
        self._requeued: deque[dict[str, Any]] = deque()
        self._isolated: deque[dict[str, Any]] = deque()
        self._slots = [_PackSlot(spec.resources, size) for size in capacities]

    def run(self) -> None:
        """Run the sweep's trials until the manager has none left or stops the sweep.

        Raises RunFailed when a process cannot start or fails as a whole.
        """
        try:
            while self._ask():
                self._manager.note_wait()
                self._manager.ask_ahead()
                answers = {slot.answer: slot for slot in self._slots if slot.answer is not None}
                if not answers:  # the last process was released for the winner of another sweep
                    time.sleep(_POLL_SECONDS)
                    continue
                ready, _ = ray.wait(list(answers), num_returns=1, timeout=_POLL_SECONDS)
                for answer in ready:
                    self._take(answers[answer])
                self._end_silence()
        finally:
            for slot in self._slots:
                slot.rest()

    def _share(self) -> list[_PackSlot]:
        """Slots that may run now. Of the others, those with trials finish them first; those without are released."""
        slots = sorted(self._slots, key=lambda slot: (not slot.trials, not slot.up))
        useful = len(slots)
        if self._finished:
            useful = sum(bool(slot.trials) for slot in slots) + len(self._requeued) + len(self._isolated)
        may = self._slot_limit(min(useful, len(slots)))
        for slot in slots[may:]:
            if not slot.trials:
                slot.rest()
        for slot in slots[:may]:
            if not slot.up:
                slot.start()
        return slots[:may]

    def _ask(self) -> bool:
        """Start a step on every idle slot. Returns False when no trial is left and none will come."""
        stopping = self._manager.stopping()
        may = self._share()
        for slot in self._slots:
            if slot.answer is None:
                if not stopping and slot in may:
                    self._fill(slot)
                for seed_run in slot.trials:  # the last ones share the devices that all had
                    self._manager.hold(seed_run, of=len(slot.trials))
                if slot.trials:
                    slot.ask(stopping)
        if any(slot.trials for slot in self._slots):
            return True
        over = stopping or (self._manager.exhausted and not self._requeued and not self._isolated)
        return not over and (not may or any(slot.answer is not None for slot in self._slots))

    def _fill(self, slot: _PackSlot) -> None:
        if not slot.trials:
            slot.alone = bool(self._isolated)
            if slot.alone:
                slot.take(self._isolated.popleft())
        while not slot.alone and len(slot.trials) < slot.size:
            config = self._requeued.popleft() if self._requeued else self._manager.next(hold=False)
            if config is None:
                self._finished = self._manager.exhausted
                return
            slot.take(config)

    def _take(self, slot: _PackSlot) -> None:
        answer = slot.answer
        slot.answer = None
        try:
            payloads, running = ray.get(answer)
        except Preempted:
            slot.kill()
            for seed_run in slot.trials:
                self._manager.release(seed_run)
            self._requeued += slot.trials.values()
            slot.trials = {}
            slot.start()
            return
        except reports.DeviceLost as error:
            slot.kill()
            self._handle_death(slot, one_line(getattr(error, "cause", error)))  # the cause without Ray's wrapper
            return
        except ray.exceptions.RayTaskError as error:  # not a trial's error: a retry would raise it again
            raise reports.failed_there(self._folder, error) from error
        except ray.exceptions.RayError as error:
            if slot.starts > RETRIES:
                raise RunFailed(self._folder.id, one_line(error), str(self._folder.log)) from error
            self._handle_death(slot, reports.death_cause(str(error)))
            return
        slot.starts = 0
        for seed_run, payload in payloads:
            if self._manager.result(seed_run, payload) and seed_run in slot.trials:
                slot.drop(seed_run)
        slot.trials = {seed_run: config for seed_run, config in slot.trials.items() if seed_run in running}

    def _handle_death(self, slot: _PackSlot, cause: str) -> None:
        """Requeue or isolate the trials of a dead actor, fail those that died too often, and start a new actor."""
        trials = slot.trials
        self._lost(cause, *trials)
        slot.trials = {}
        self._deaths.update(trials.keys())
        for seed_run, config in trials.items():
            self._manager.release(seed_run)
            if self._deaths[seed_run] > RETRIES:
                self._manager.died(seed_run, reports.repeated(cause, self._deaths[seed_run]))
            elif self._deaths[seed_run] > TOGETHER_AGAIN:
                self._isolated.append(config)
            else:
                self._requeued.append(config)
        slot.start()

    def _end_silence(self) -> None:
        """Kill actors that have been silent for too long. A trial that was alone on one has failed.

        One whose answer this process has not taken yet, since it was busy itself, is not silent.
        """
        for slot in self._slots:
            if self._timeout is None or slot.answer is None or slot.called is None:
                continue
            if time.monotonic() - slot.called > self._timeout and not ray.wait([slot.answer], timeout=0)[0]:
                slot.kill()
                if slot.alone:
                    for seed_run in list(slot.trials):
                        self._manager.died(seed_run, f"no report for {self._timeout:g} s")
                    slot.trials = {}
                self._handle_death(slot, "its process was silent and killed")
