"""Train several trials together in one process.

Each trial keeps its own stream, selection and checkpoints. Before the streams compute their next epoch, packs train and
evaluate all trials of one shape at once, and the streams use these results. A trial whose workload does not support
packs, or that has no peer of its shape, trains by itself.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestrator.config import user_code, workload_loader
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.engine import checkpoint
from orchestrator.engine.loop import Progress
from orchestrator.errors import UserError
from orchestrator.runs import micro_batches, reports, start_point, worker
from orchestrator.runs.report_pace import ReportPace
from orchestrator.search import spaces
from orchestrator.storage.object_sync import RemoteFolder
from orchestrator.sweeps.pack_trial import Member, PackTrial
from workloads import memory
from workloads.contract import Pack, Packable, Workload

if TYPE_CHECKING:
    import torch

    from orchestrator.sweeps.trial_manager import TrialManager


def pack_size(spec: SweepSpec) -> int:
    """Number of trials a process trains together: the requested number, or the workload's choice.

    Raises UserError when a pack is requested of a workload without packs.
    """
    import torch

    requested = spec.search.pack
    packable = workload_loader.code(spec.workload)
    if not isinstance(packable, Packable):
        if isinstance(requested, int) and requested > 1:
            raise UserError(
                f"{spec.workload} cannot train trials together", got=f"pack={requested}", fix="Set pack=off"
            )
        return 1
    apart = spec.search.scheduler == "pbt" or spec.search.ordered or spec.resources.workers > 1
    if apart or requested == "off":
        return 1
    if isinstance(requested, int):
        return requested
    (params,) = spaces.draws(spaces.load(spec.workload, spec.search.space), spec.fixed, spec.seed, 1)
    device = torch.device("cuda" if spec.resources.gpus_per_worker else "cpu")
    return packable.pack_size(workload_loader.params(spec.workload)(**params), device)


def capacities(spec: SweepSpec, fitting: int) -> tuple[int, ...]:
    """Number of trials at once in each process, when ``fitting`` processes fit.

    Their sum is at most ``concurrency``, and the processes hold at most ``max_gpus``. Raises UserError as
    :func:`pack_size` does.
    """
    seed_runs = spec.search.trials * spec.search.seeds
    limit = min(spec.search.concurrency or seed_runs, seed_runs)
    processes = min(fitting, limit, spec.resources.max_trials or limit)
    each, more = divmod(min(limit, processes * pack_size(spec)), processes)
    return tuple(each + (number < more) for number in range(processes))


def run_together(manager: TrialManager, runner: PackRunner, size: int) -> None:
    """Run the trials of a sweep in this process, at most ``size`` at once, until the manager has none left."""
    while True:
        while len(runner) < size and (config := manager.next(hold=False)) is not None:
            runner.begin(config)
        if not len(runner):
            return
        for seed_run in runner.seed_runs:  # the last ones share the devices that all had
            manager.hold(seed_run, of=len(runner))
        for seed_run, payload in runner.step():
            if manager.result(seed_run, payload):
                runner.drop(seed_run)


class PackRunner:
    """The running trials of this process. An error of one trial ends that trial and is its last payload.

    A lost accelerator ends all of them: :meth:`begin` and :meth:`step` raise
    :class:`~orchestrator.runs.reports.DeviceLost`. ``stop`` is called after each epoch of each trial; when it returns
    True, all trials save and leave.
    """

    def __init__(self, device: torch.device, stop: Callable[[], bool] = lambda: False) -> None:
        self._device = device
        self._stop = stop
        self._trials: dict[int, PackTrial] = {}
        self._packs: dict[tuple[Workload, ...], Pack] = {}
        self._failed: list[tuple[int, dict[str, Any]]] = []
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._limits: dict[Any, int] = {}
        """Most members of a pack, by workload and shape, where larger ones have failed."""
        self._dropped = False
        """Whether a trial was dropped since memory was last released."""
        self._full = False
        """Whether a trial did not fit next to the running ones, and none of them was dropped since."""
        self._reported = time.monotonic()
        self.timed = False
        """Whether the last step has returned because a report was due, not because a trial was at a rung or its end."""
        self.pace = ReportPace()

    def __len__(self) -> int:
        return len(self.seed_runs)

    @property
    def seed_runs(self) -> set[int]:
        """The running seed runs, those that wait for memory included."""
        return {*self._trials, *self._waiting, *(seed_run for seed_run, _ in self._failed)}

    def begin(self, config: Mapping[str, Any]) -> None:
        """Start a trial from the manager's configuration, from its last checkpoint if it has one.

        One that does not fit into the device's memory next to the others waits until one of them has ended.
        """
        self.pace.ask(config.get("pace", {}))
        self._waiting[config["number"]] = config
        self._admit()
        if len(self) == 1:
            self._reported = time.monotonic()

    def drop(self, seed_run: int) -> None:
        """Remove a trial that was stopped or has ended."""
        self._waiting.pop(seed_run, None)
        if trial := self._trials.pop(seed_run, None):
            trial.carried.finish()
            workload = trial.member.workload
            self._packs = {
                members: pack for members, pack in self._packs.items() if all(each is not workload for each in members)
            }
            self._dropped = True
            self._full = False

    def leave(self, wait: bool) -> None:
        """Save and drop all trials: they may have been interrupted rather than pruned.

        ``wait`` until what they have written is stored.
        """
        for seed_run, trial in list(self._trials.items()):
            if trial.unsaved:
                trial.save()
            self.drop(seed_run)
            if wait:
                trial.carried.close()
        self._waiting.clear()

    def step(self) -> list[tuple[int, dict[str, Any]]]:
        """Train all trials until one reaches a rung or its end, or a report is due.

        Returns the new reports as (seed run, payload).
        """
        self.timed = False
        self._admit()
        payloads = self._failed
        self._failed = []
        while self._trials and not payloads:
            self._train_together()
            payloads = self._advance()
            self.timed = not payloads
            if time.monotonic() - self._reported >= self.pace.seconds():
                payloads += [(seed_run, trial.payload()) for seed_run, trial in self._trials.items() if trial.rows]
                self._reported = time.monotonic()
            self._admit()
            payloads += self._failed
            self._failed = []
        return payloads

    def _admit(self) -> None:
        """Start the waiting trials that fit. One that does not fit alone is tried twice."""
        if self._full:  # building a trial to see it fail takes a while, too
            return
        for seed_run, config in list(self._waiting.items()):
            if not self._make_room():
                return
            failure, out_of_memory = self._try_to_open(seed_run, config)
            if out_of_memory:
                # Here: until the handler has ended, the error refers to what was built.
                gc.collect()
                memory.release(self._device)
                if self._trials:
                    self._full = True
                    return
                failure, _ = self._try_to_open(seed_run, config)
            del self._waiting[seed_run]
            if failure:
                self._failed.append((seed_run, failure))

    def _make_room(self) -> bool:
        """Release the memory of dropped trials if the next one needs it. Returns whether there is room."""
        if self._dropped and not (self._trials and self._has_room()):  # not before each: it takes a while
            memory.release(self._device)
            self._dropped = False
        return self._has_room()

    def _try_to_open(self, seed_run: int, config: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
        """Start a trial. Returns the payload of the error if it fails, and whether memory was lacking."""
        try:
            self._trials[seed_run] = self._open(config)
        except Exception as error:
            reports.check_device(error)
            return reports.failure_payload(error), reports.is_out_of_memory(error)
        return None, False

    def _has_room(self) -> bool:
        """Whether one more member of the present shape fits into the device's memory."""
        members = [trial.member.workload for trial in self._trials.values()]
        need = max((member.pack_bytes() for member in members if isinstance(member, Packable)), default=0)
        if self._device.type != "cuda" or not need:
            return True
        return memory.available_bytes(self._device) >= need * (len(members) + 1)

    def _again(self, trials: Sequence[PackTrial]) -> None:
        """Start trials again, from their last checkpoints: an error has left them in the middle of an epoch."""
        self._packs = {}
        for trial in trials:
            self.drop(trial.config["number"])
            self._waiting[trial.config["number"]] = trial.config

    def _open(self, config: Mapping[str, Any]) -> PackTrial:
        spec = ExperimentSpec.model_validate(config["spec"])
        user_code.allow(spec.workload)
        folder = Path(config["folder"])
        accumulate = micro_batches.chosen(spec, folder)
        plain = worker.experiment(
            spec, Path(config["data"]), self._device, final=False, accumulate=accumulate, stop=self._stop, folder=folder
        )
        member = Member(plain.build(holdout=True))
        experiment = replace(
            plain,
            build=lambda holdout: cast(Workload, member),
            every_epoch=True,
            clock=lambda: member.seconds,
            units_at_rungs=config.get("units_at_rungs", False),
        )
        carried = RemoteFolder(folder)
        start = start_point.state(spec, folder, checkpoint.latest(folder))
        stream = experiment.stream(start)
        # A pack trains ahead of the streams, so a stream that evaluates untrained weights must do so first.
        progress = None if start or member.pretrained or spec.plan.init else Progress()
        return PackTrial(config, experiment, stream, member, progress, carried)

    def _advance(self) -> list[tuple[int, dict[str, Any]]]:
        payloads = []
        for seed_run, trial in list(self._trials.items()):
            try:
                if not trial.advance():
                    trial.carried.close()
                    self.drop(seed_run)
                    if trial.rows:
                        payloads.append((seed_run, trial.payload()))
                elif trial.is_to_be_judged:
                    payloads.append((seed_run, trial.payload()))
            except Exception as error:
                reports.check_device(error)
                spec = ExperimentSpec.model_validate(trial.config["spec"])
                if micro_batches.increase(spec, Path(trial.config["folder"]), error):
                    self._again([trial])
                    continue
                self.drop(seed_run)
                payloads.append((seed_run, reports.failure_payload(error, trial.rows)))
        return payloads

    def _train_together(self) -> None:
        """Compute the next epoch of all trials that have a peer of their shape."""
        peers: dict[Any, list[PackTrial]] = {}
        for trial in self._trials.values():
            workload = trial.member.workload
            if isinstance(workload, Packable) and trial.epoch and (shape := workload.pack_shape()) is not None:
                peers.setdefault((type(workload), shape), []).append(trial)
        packs: dict[tuple[Workload, ...], Pack] = {}
        for shape, trials in peers.items():
            size = self._limits.get(shape, len(trials))
            for start in range(0, len(trials), size):
                together = trials[start : start + size]
                if len(together) == 1:
                    continue
                try:
                    packs |= self._prepare(together)
                except Exception as error:
                    reports.check_device(error)
                    # Too large for the memory, or one member fails, which alone shall fail: each is trained apart.
                    self._limits[shape] = len(together) // 2 if reports.is_out_of_memory(error) else 1
                    self._again(trials)
                    packs = {}
                    break
        self._packs = packs

    def _prepare(self, trials: Sequence[PackTrial]) -> dict[tuple[Workload, ...], Pack]:
        members = tuple(trial.member.workload for trial in trials)
        pack = self._packs.get(members) or cast(Packable, type(members[0])).pack(members)
        epochs = [cast(int, trial.epoch) for trial in trials]
        evaluated = [k for k, trial in enumerate(trials) if trial.experiment.plan.evaluates(epochs[k])]
        from workloads.precision import training_precision  # imports PyTorch

        started = time.monotonic()
        with training_precision(trials[0].experiment.plan.precision):
            trained = pack.train_epoch(epochs)
        between = time.monotonic()
        evaluations = pack.evaluate(evaluated, "validation") if evaluated else []
        ended = time.monotonic()
        for trial, epoch, result in zip(trials, epochs, trained):
            trial.member.prepare(epoch, result, (between - started) / len(trials))
        for k, evaluation in zip(evaluated, evaluations):
            trials[k].member.prepare("validation", evaluation, (ended - between) / len(evaluated))
        return {members: pack}
