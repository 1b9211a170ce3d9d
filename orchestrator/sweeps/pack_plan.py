"""Trials trained together in one process: each is an experiment as ever, their epochs are computed in one go.

Every trial keeps its own stream, selection and checkpoints. Before the streams are asked for their next epoch, packs
train and evaluate all members of one shape; the streams then find the results prepared. A trial whose workload offers
no packing, or which has no peer of its shape, trains in its turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from orchestrator.config import workload_loader
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.engine import checkpoint, loop
from orchestrator.engine.experiment import Experiment
from orchestrator.engine.loop import EpochReport, Progress, Row
from orchestrator.errors import UserError
from orchestrator.runs import reports, worker
from orchestrator.runs.report_pace import ReportPace
from orchestrator.search import spaces
from orchestrator.storage.object_sync import RemoteFolder
from workloads.contract import Evaluation, Metrics, Pack, Packable, Servable, Split, State, Workload

if TYPE_CHECKING:
    import torch

    from orchestrator.sweeps.trial_manager import TrialManager


def pack_size(spec: SweepSpec) -> int:
    """How many trials of a sweep a process trains together: as asked, or as many as pay by the workload itself.

    Raises UserError when a number is asked of a workload that can not do it.
    """
    import torch

    asked, packable = spec.search.pack, workload_loader.code(spec.workload)
    if not isinstance(packable, Packable):
        if isinstance(asked, int) and asked > 1:
            raise UserError(
                f"{spec.workload} does not offer to train trials together", got=f"pack={asked}", fix="Set pack=off"
            )
        return 1
    if spec.search.scheduler == "pbt" or spec.resources.workers > 1 or asked == "off":
        return 1
    if isinstance(asked, int):
        return asked
    (params,) = spaces.draws(spaces.load(spec.workload, spec.search.space), spec.fixed, spec.seed, 1)
    device = torch.device("cuda" if spec.resources.gpus_per_worker else "cpu")
    return packable.pack_size(workload_loader.params(spec.workload)(**params), device)


def capacities(spec: SweepSpec, fitting: int) -> tuple[int, ...]:
    """How many trials of a sweep each process has at once, where ``fitting`` processes fit; a number a process.

    All together they are never more than ``concurrency``, and the processes hold at most ``max_gpus``. Raises
    UserError as :func:`pack_size`.
    """
    seed_runs = spec.search.trials * spec.search.seeds
    limit = min(spec.search.concurrency or seed_runs, seed_runs)
    processes = min(fitting, limit, spec.resources.most or limit)
    each, more = divmod(min(limit, processes * pack_size(spec)), processes)
    return tuple(each + (place < more) for place in range(processes))


def run_together(manager: TrialManager, runner: PackRunner, size: int) -> None:
    """Run a sweep's trials in this process, up to ``size`` at once, until the manager has none left."""
    while True:
        while len(runner) < size and (config := manager.next()) is not None:
            runner.begin(config)
        if not len(runner):
            return
        for seed_run, payload in runner.step():
            if manager.result(seed_run, payload):
                runner.drop(seed_run)


_Result: TypeAlias = Metrics | Evaluation | Exception


class Member:
    """What a stream takes for its workload: it hands out what a pack has prepared and does the rest itself."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.objective = workload, workload.objective
        self.pretrained = loop.is_pretrained(workload)
        self.seconds = 0.0
        """Of training and evaluation, as they are asked for; of what was done together, a fair share."""
        self._prepared: dict[int | Split, tuple[_Result, float]] = {}

    def prepare(self, what: int | Split, result: _Result, seconds: float = 0.0) -> None:
        """Keep the result of an epoch, or of a split's evaluation, for when it is asked for."""
        self._prepared[what] = (result, seconds)

    def train_epoch(self, epoch: int) -> Metrics | Evaluation:
        return self._take(epoch, lambda: self.workload.train_epoch(epoch))

    def evaluate(self, split: Split) -> Evaluation:
        return cast(Evaluation, self._take(split, lambda: self.workload.evaluate(split)))

    def state_dict(self) -> State:
        return self.workload.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.workload.load_state_dict(state)

    def servable(self) -> Servable:
        return self.workload.servable()

    def _take(self, what: int | Split, compute: Callable[[], Metrics | Evaluation]) -> Metrics | Evaluation:
        if what not in self._prepared:
            started = time.monotonic()
            self.prepare(what, compute(), time.monotonic() - started)
        result, seconds = self._prepared.pop(what)
        self.seconds += seconds
        if isinstance(result, Exception):
            raise result
        return result


@dataclass
class _Trial:
    """One trial under way."""

    config: Mapping[str, Any]
    experiment: Experiment
    stream: Iterator[EpochReport]
    member: Member
    progress: Progress | None
    """How far it has come; None until a stream that does not begin with epoch 1 has reported."""
    carried: RemoteFolder
    rows: list[Row] = field(default_factory=list)
    report: EpochReport | None = None

    @property
    def epoch(self) -> int | None:
        """The epoch that its stream will train next, if any."""
        plan = self.experiment.plan
        return None if self.progress is None or self.progress.ended(plan) else self.progress.epoch + 1

    def advance(self) -> bool:
        """One report on; False when the stream was stopped before."""
        report = next(self.stream, None)
        if report is None:
            return False
        self.report = report
        self.progress = self.report.progress
        self.rows += self.report.rows
        rung = self.report.epoch in self.experiment.plan.decide_at
        folder = Path(self.config["folder"])
        if self.report.checkpoint_due or (self.config["save_at_rungs"] and rung):
            worker.save(self.experiment, folder, self.config["keep"])
        if self.report.ended:
            worker.write_table(self.experiment.validation_units, folder / worker.UNITS)
            self.carried.close()  # the driver may ask for it now
        return True

    @property
    def is_to_be_judged(self) -> bool:
        return self.report is not None and (
            self.report.ended is not None or self.report.epoch in self.experiment.plan.decide_at
        )

    def payload(self) -> dict[str, Any]:
        """All rows since the last one, as one report."""
        assert self.report is not None
        rows, self.rows = tuple(self.rows), []
        return reports.payload(replace(self.report, rows=rows))


class PackRunner:
    """Trials under way in this process. What one does wrong ends it alone and is its last payload.

    Not so a lost accelerator, which no trial of this process can use any more: :meth:`begin` and :meth:`step` raise
    :class:`~orchestrator.runs.reports.DeviceLost`.

    ``stop`` is asked after every epoch of every trial: when it says yes, all save what they have and leave.
    """

    def __init__(self, device: torch.device, stop: Callable[[], bool] = lambda: False) -> None:
        self._device, self._stop = device, stop
        self._trials: dict[int, _Trial] = {}
        self._packs: dict[tuple[Workload, ...], Pack] = {}
        self._failed: list[tuple[int, dict[str, Any]]] = []
        self._told = time.monotonic()
        self.pace = ReportPace()

    def __len__(self) -> int:
        return len(self._trials) + len(self._failed)

    def begin(self, config: Mapping[str, Any]) -> None:
        """Take a trial up, as the manager's ``next`` gives it, from its last checkpoint if any."""
        self.pace.ask(config.get("pace", {}))
        try:
            self._trials[config["number"]] = self._open(config)
        except Exception as error:
            reports.check_device(error)
            self._failed.append((config["number"], reports.failure_payload(error)))

    @property
    def seed_runs(self) -> set[int]:
        """Who is under way."""
        return {*self._trials, *(seed_run for seed_run, _ in self._failed)}

    def drop(self, seed_run: int) -> None:
        """Forget a trial that was stopped or has ended."""
        if trial := self._trials.pop(seed_run, None):
            trial.carried.finish()

    def step(self) -> list[tuple[int, dict[str, Any]]]:
        """Epochs of all trials until one is to be judged or a report is due: (unit, payload) of who has news."""
        said, self._failed = self._failed, []
        while self._trials and not said:
            self._train_together()
            said = self._advance()
            if time.monotonic() - self._told >= self.pace.seconds():
                said += [(seed_run, trial.payload()) for seed_run, trial in self._trials.items() if trial.rows]
                self._told = time.monotonic()
        return said

    def _open(self, config: Mapping[str, Any]) -> _Trial:
        spec = ExperimentSpec.model_validate(config["spec"])
        plain = worker.experiment(spec, Path(config["data"]), self._device, final=False, stop=self._stop)
        member = Member(plain.build(holdout=True))
        experiment = replace(
            plain, build=lambda holdout: cast(Workload, member), every_epoch=True, clock=lambda: member.seconds
        )
        carried = RemoteFolder(Path(config["folder"]))
        found = checkpoint.latest(Path(config["folder"]))
        stream = experiment.stream(checkpoint.read(found, spec.identity) if found else None)
        # A pack trains ahead of the streams: not before one that evaluates untouched weights has done so.
        progress = None if found or member.pretrained else Progress()
        return _Trial(config, experiment, stream, member, progress, carried)

    def _advance(self) -> list[tuple[int, dict[str, Any]]]:
        said = []
        for seed_run, trial in list(self._trials.items()):
            try:
                if not trial.advance():
                    trial.carried.close()
                    self.drop(seed_run)
                    if trial.rows:
                        said.append((seed_run, trial.payload()))
                elif trial.is_to_be_judged:
                    said.append((seed_run, trial.payload()))
            except Exception as error:
                reports.check_device(error)
                self.drop(seed_run)
                said.append((seed_run, reports.failure_payload(error, trial.rows)))
        return said

    def _train_together(self) -> None:
        """Prepare the next epoch of all trials that have peers of their shape."""
        peers: dict[Any, list[_Trial]] = {}
        for trial in self._trials.values():
            workload = trial.member.workload
            if isinstance(workload, Packable) and trial.epoch and (shape := workload.pack_shape()) is not None:
                peers.setdefault((type(workload), shape), []).append(trial)
        packs: dict[tuple[Workload, ...], Pack] = {}
        for trials in peers.values():
            if len(trials) > 1:
                try:
                    packs |= self._prepare(trials)
                except Exception as error:  # of the device, say: it is everyone's
                    for trial in trials:
                        trial.member.prepare(trial.epoch or 0, error)
        self._packs = packs

    def _prepare(self, trials: Sequence[_Trial]) -> dict[tuple[Workload, ...], Pack]:
        members = tuple(trial.member.workload for trial in trials)
        pack = self._packs.get(members) or cast(Packable, type(members[0])).pack(members)
        epochs = [cast(int, trial.epoch) for trial in trials]
        places = [k for k, trial in enumerate(trials) if trial.experiment.plan.evaluates(epochs[k])]
        started = time.monotonic()
        trained = pack.train_epoch(epochs)
        between = time.monotonic()
        seen = pack.evaluate(places, "validation") if places else []
        ended = time.monotonic()
        for trial, epoch, result in zip(trials, epochs, trained):
            trial.member.prepare(epoch, result, (between - started) / len(trials))
        for place, evaluation in zip(places, seen):
            trials[place].member.prepare("validation", evaluation, (ended - between) / len(places))
        return {members: pack}
