"""Run trials on Ray Tune. Actors are reused; every report goes to the trial manager, which decides."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher, SearchGenerator

from orchestrator.cluster.fair_share import Share, SlotLimit, WholeCluster
from orchestrator.cluster.lost_devices import LostDevices
from orchestrator.cluster.preemption import RAY_DIED, this_node
from orchestrator.cluster.ray_compat import deaths_are_retried
from orchestrator.cluster.train_group import bundle, remove_groups
from orchestrator.config import user_code
from orchestrator.config.spec import ExperimentSpec, Resources, SweepSpec
from orchestrator.engine import checkpoint
from orchestrator.engine.loop import Progress, Row
from orchestrator.errors import RunFailed
from orchestrator.runs import heartbeat, micro_batches, reports, worker
from orchestrator.runs.group_driver import Holding, follow
from orchestrator.runs.heartbeat import TrialMonitor
from orchestrator.runs.session import Session
from orchestrator.runs.train import RETRIES
from orchestrator.storage import commands
from orchestrator.storage.look_ledger import Look
from orchestrator.storage.object_sync import RemoteFolder, download
from orchestrator.storage.records import RunFolder
from orchestrator.sweeps import actor_failures
from orchestrator.sweeps.group import TOKEN, GroupTrial
from orchestrator.sweeps.trial import TrialActor
from orchestrator.sweeps.trial_manager import TrialManager

YIELD_SECONDS = 0.5
"""Interval at which a sweep without processes checks whether it may have one again."""


@dataclass
class _SweepState:
    """State shared by the Tune searcher, stopper and callback."""

    manager: TrialManager
    monitor: TrialMonitor
    slots: int
    slot_limit: SlotLimit
    lost: Callable[..., None] = lambda cause, *seed_runs: None
    """Called with the cause of each process' death."""
    grouped: bool = False
    """Whether each trial has several workers."""
    finished: bool = False
    """Whether no further trial will start."""
    seed_runs: dict[str, int] = field(default_factory=dict)
    """Seed run of each Tune trial id."""
    configs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Configuration of each seed run."""
    starting: set[int] = field(default_factory=set)
    """Seed runs that have not reported yet."""
    failed_starts: Counter[int] = field(default_factory=Counter)
    again: list[dict[str, Any]] = field(default_factory=list)
    """Configurations of trials whose process died while it was prepared for them. Tune does not retry these."""
    open: set[int] = field(default_factory=set)
    """Seed runs whose workers may still exist."""
    yielded: bool = False
    """Whether the last process was released for the winner of another sweep."""
    trials: dict[str, Any] = field(default_factory=dict)
    """Tune's trial objects by id. They know how their processes died."""

    def home(self, seed_run: int) -> Path:
        return Path(self.configs[seed_run]["folder"])

    def may(self) -> int:
        """Maximum number of trials that may run now."""
        may = self.slot_limit(self.manager.live if self.finished else self.slots)
        self.yielded = self.yielded or may == 0
        return may

    def update_finished(self) -> None:
        """Update :attr:`finished`. It becomes False again when a trial is added or waits at a rung."""
        self.finished = self.manager.exhausted and not self.starting


class _Unsaved:
    """Base class without pickled state. Tune pickles its parts into files that are never read: the journal is used."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _StudySearcher(_Unsaved, Searcher):  # type: ignore[misc]
    """Searcher that takes the next trial from the manager and reports trials whose process is lost."""

    def __init__(self, state: _SweepState) -> None:
        super().__init__()
        self._state = state

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        state = self._state
        config = state.again.pop() if state.again else None
        if config is None and state.manager.live < state.may():
            config = state.manager.next(hold=False)  # Tune asks before it has a process
        if config is None:
            state.update_finished()
            return str(Searcher.FINISHED) if state.finished and not state.manager.live else None  # None is not final
        seed_run = config["number"]
        state.seed_runs[trial_id], state.configs[seed_run] = seed_run, config
        state.open.add(seed_run)
        state.starting.add(seed_run)
        state.monitor.begin(seed_run, state.home(seed_run))
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        state = self._state
        seed_run = state.seed_runs[trial_id]
        if state.grouped and not state.manager.stopping():  # while stopping, its workers may be saving
            remove_groups(state.home(seed_run))
            state.open.discard(seed_run)
        if error:
            hung = heartbeat.given_up(state.home(seed_run))
            trial = state.trials.get(trial_id)
            cause = str(hung or actor_failures.death_text(trial))
            state.lost(cause, seed_run)
            if trial is None and not hung and state.failed_starts[seed_run] < RETRIES and not state.manager.stopping():
                state.failed_starts[seed_run] += 1
                state.again.append(state.configs[seed_run])
            else:
                state.starting.discard(seed_run)
                state.manager.died(seed_run, cause)

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _SharedSearch(_Unsaved, SearchGenerator):  # type: ignore[misc]
    """Search generator that keeps Tune within the sweep's share of the cluster.

    Tune keeps the process of an ended trial for the next one. When the share has shrunk, or no further trial will
    start, the search reports that it is finished, and Tune releases the process. The report is not final while a trial
    runs. It is False while a configuration waits to be started again, which Tune does not know of.
    """

    def __init__(self, state: _SweepState) -> None:
        super().__init__(ConcurrencyLimiter(_StudySearcher(state), state.slots))  # without it: one start at a time
        self._state = state

    def is_finished(self) -> bool:
        state = self._state
        may = state.may()
        shrunk = may < state.slots and state.manager.live >= may and not state.again
        return super().is_finished() or state.finished or shrunk


class _ReportStopper(_Unsaved, tune.Stopper):  # type: ignore[misc]
    """Stopper that passes each report to the manager. Tune calls it before anything else sees the report."""

    def __init__(self, state: _SweepState) -> None:
        self._state = state

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        payload = dict(result)
        for bulky in ("rows", "best_metrics", "units"):  # Tune would store them in its state
            result.pop(bulky, None)
        seed_run = self._state.seed_runs[trial_id]
        if payload.get(reports.HELD):
            self._state.manager.hold(seed_run)
            return False
        self._state.starting.discard(seed_run)
        if cause := payload.get(reports.LOST):
            self._state.manager.release(seed_run)
            self._state.lost(cause, seed_run)
        stop = self._state.manager.result(seed_run, payload) or bool(payload.get(reports.SAVED))
        self._state.monitor.heard(seed_run)
        if stop:
            self._state.monitor.end(seed_run)
        return stop

    def stop_all(self) -> bool:
        """Kill silent trials and return whether the sweep stops. Tune calls it several times a second."""
        watched = self._state.monitor
        for seed_run, folder in watched.silent().items():
            watched.end(seed_run)
            heartbeat.kill(folder, watched.timeout or 0.0)
        if self._state.finished:  # then Tune does not ask for trials
            self._state.update_finished()
        return self._state.manager.stopping() and not self._ends_epochs()

    def _ends_epochs(self) -> bool:
        """Whether trials train on to the end of their epoch, after a stop request. Tune would kill them after 10 s."""
        state = self._state
        return state.manager.ends_epochs() and any(trial.status == "RUNNING" for trial in state.trials.values())


class _ProcessCallback(_Unsaved, tune.Callback):  # type: ignore[misc]
    """Callback that counts started and replaced processes, and computes the next suggestion between reports."""

    def __init__(self, state: _SweepState) -> None:
        self._state = state

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._state.trials[trial.trial_id] = trial
        if not self._state.grouped:
            self._state.manager.hold(self._state.seed_runs[trial.trial_id])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        seed_run = self._state.seed_runs[trial.trial_id]
        cause = actor_failures.death_text(trial)
        self._state.manager.release(seed_run)
        self._state.lost(cause, seed_run)
        self._state.monitor.lost(seed_run)
        if cause.startswith(reports.OUT_OF_MEMORY):  # the same settings would need the same memory
            home = self._state.home(seed_run)
            spec = ExperimentSpec.model_validate(self._state.configs[seed_run]["spec"])
            if not micro_batches.increase(spec, home, ray.exceptions.OutOfMemoryError(cause)):
                heartbeat.give_up(home, cause)  # the next process reports it and does not train

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._state.manager.note_wait()
        self._state.manager.ask_ahead()


def run_trials(
    spec: SweepSpec,
    folder: RunFolder,
    manager: TrialManager,
    slots: int,
    slot_limit: SlotLimit,
    lost: Callable[..., None],
) -> None:
    """Run the sweep's trials until the manager has none left or stops the sweep.

    At most ``slots`` run at once, fewer where ``slot_limit`` says so. ``lost`` is called with the cause of each
    death. Raises RunFailed when Tune ends before all trials have.
    """
    grouped = spec.resources.workers > 1
    state = _SweepState(manager, TrialMonitor(spec.search.trial_timeout), slots, slot_limit, lost, grouped)
    try:
        with deaths_are_retried(actor_failures.Died):
            _tuner(spec, folder, state).fit()
            while state.yielded and not (manager.stopping() or manager.live or manager.exhausted):
                if state.may():
                    state.yielded = False
                    _tuner(spec, folder, state).fit()
                else:
                    time.sleep(YIELD_SECONDS)
    except KeyboardInterrupt as error:
        raise actor_failures.released(error) from None
    finally:
        if grouped:  # placement groups of processes that were killed after their trial ended
            remove_groups(*map(state.home, state.open))
    if not manager.stopping() and (manager.live or not manager.exhausted):
        cause = f"Ray Tune ended before the sweep (running trials: {manager.live})"
        again = commands.for_run(folder.path, "sweep --resume")
        raise RunFailed(folder.id, f"{cause}. Continue: {again}", str(folder.log))


def _tuner(spec: SweepSpec, folder: RunFolder, state: _SweepState) -> tune.Tuner:
    return tune.Tuner(
        tune.with_resources(*((GroupTrial, TOKEN) if state.grouped else (TrialActor, bundle(spec.resources)))),
        tune_config=tune.TuneConfig(
            search_alg=_SharedSearch(state),
            num_samples=-1,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"tune-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path),
            stop=_ReportStopper(state),
            callbacks=[_ProcessCallback(state)],
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # trials write their own checkpoints
            verbose=0,
            progress_reporter=tune.CLIReporter(),  # Tune's own for notebooks clears the cell's output
        ),
    )


def run_winner(
    spec: ExperimentSpec,
    folder: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    *,
    resume: Path | None,
    selected: Progress | None,
    devices: LostDevices,
    share: Share | WholeCluster,
    holding: Holding = lambda resources: nullcontext(),
) -> bool:
    """Refit or test the winner with the resources of a trial: in a Ray task or a Train group.

    A lost process is replaced, up to three times; ``devices`` counts lost accelerators. ``share`` is informed that the
    winner waits for its process, ``holding`` is entered once it has one. Returns False when it was stopped.
    """
    folder.mkdir(exist_ok=True)
    share.limit(1, waits=True)

    @contextmanager
    def held(resources: Resources) -> Iterator[None]:
        share.limit(1)
        with holding(resources):
            yield

    if spec.resources.workers > 1:
        return follow(spec, folder, session, rows, resume=resume, selected=selected, holding=held, devices=devices)
    need = bundle(spec.resources)
    # Ray's retries would skip as many reports as were already sent, so a lost task is started again here.
    task = ray.remote(_winner_task).options(
        num_cpus=need["CPU"], num_gpus=need.get("GPU", 0), max_retries=0, num_returns="streaming"
    )
    data = session.settings.data
    lost = 0
    while True:
        ended = True
        stream = task.remote(spec, folder, data, resume, selected, session.look(spec), session.folder.stop_file)
        try:
            with ExitStack() as process:
                for payload in _arriving(stream, session, devices):
                    if node := payload.get("node"):
                        process.enter_context(held(spec.resources))
                        session.task_nodes = {node}
                        continue
                    ended = payload["ended"] is not None  # None: its node was taken away
                    rows(list(reports.rows_from_json(payload["rows"])))
        except ray.exceptions.LocalRayletDiedError:  # no task can start: a resume goes on
            session.interrupts.stop(RAY_DIED, saves=False)
            return False
        except ray.exceptions.RayError as error:
            device_lost = isinstance(getattr(error, "cause", None), reports.DeviceLost)
            if isinstance(error, ray.exceptions.RayTaskError) and not device_lost:  # a retry would raise it again
                raise reports.failed_there(session.folder, error) from error
            lost += 1
            cause = reports.death_cause(str(error))
            devices.report(cause)
            if reports.killed_for_memory(error):
                if micro_batches.increase(spec, folder, error):
                    continue
                lost = RETRIES + 1
            if lost > RETRIES:
                raise RunFailed(session.folder.id, reports.repeated(cause, lost), str(session.folder.log)) from error
        except BaseException:  # an error of this process: a connection of a notebook would keep the task
            with suppress(Exception):  # the cluster may be the cause
                ray.cancel(stream, force=True)
            raise
        else:
            if session.interrupts.stop_requested():
                return worker.outcome_of(folder) is not None
            if ended:
                download(folder, worker.OUTCOME)
                return True


def _arriving(stream: Any, session: Session, devices: LostDevices) -> Iterator[dict[str, Any]]:
    """Yield the results of a streaming task as they arrive. A stop may be requested in between."""
    while True:
        ready, _ = ray.wait([stream], timeout=0.2)
        session.interrupts.stop_requested()
        devices.poll()
        if ready:
            reference = next(stream, None)
            if reference is None:
                return
            yield ray.get(reference)


def _winner_task(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    resume: Path | None,
    selected: Progress | None,
    look: Look,
    stop_file: Path,
) -> Iterator[dict[str, Any]]:
    yield {"node": ray.get_runtime_context().get_node_id()}
    user_code.allow(spec.workload)
    device = worker.take_device(spec.resources)
    with RemoteFolder(folder):
        if resume:
            download(resume, checkpoint.META)
        stop_requested = worker.stop_when(stop_file)
        node_leaves = this_node()
        try:
            for report in worker.reports(
                spec, folder, data, device,
                stop=lambda: stop_requested() or node_leaves(), resume=resume, selected=selected, look=look,
            ):  # fmt: skip
                yield reports.payload(report)
        except Exception as error:
            reports.check_device(error)
            raise
