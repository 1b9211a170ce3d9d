"""Trials on Ray: Tune places them on reused actors; what they say goes to the ledger, which decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher, SearchGenerator

from orchestrator.cluster.fair_share import Hold
from orchestrator.cluster.preemption import this_node
from orchestrator.cluster.ray_compat import deaths_are_retried
from orchestrator.cluster.train_group import bundle, remove_groups
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.engine import checkpoint
from orchestrator.engine.loop import Progress, Row
from orchestrator.errors import RunFailed
from orchestrator.runs import heartbeat as watch
from orchestrator.runs import reports as messages
from orchestrator.runs import worker
from orchestrator.runs.group_driver import follow
from orchestrator.runs.heartbeat import Watch
from orchestrator.runs.session import Session
from orchestrator.runs.train import RETRIES
from orchestrator.storage.object_sync import Carried, bring
from orchestrator.storage.records import RunFolder
from orchestrator.sweeps import actor_failures
from orchestrator.sweeps.group import TOKEN, GroupTrial
from orchestrator.sweeps.trial import TrialActor
from orchestrator.sweeps.trial_manager import Ledger


@dataclass
class _Under:
    """What is under way, by what the parts of Tune below know of it together."""

    ledger: Ledger
    watch: Watch
    slots: int
    hold: Hold
    lost: Callable[[str], None] = lambda cause: None
    """Gets the cause of each process' death."""
    grouped: bool = False
    """Whether a trial has several workers."""
    finished: bool = False
    """Whether no further trial will begin."""
    units: dict[str, int] = field(default_factory=dict)
    """By the ids that Tune gives."""
    homes: dict[int, Path] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    """The units whose workers may be there."""
    trials: dict[str, Any] = field(default_factory=dict)
    """Tune's own, which know how their processes died."""

    def may(self) -> int:
        """How many trials may be under way now."""
        return self.hold(self.ledger.live if self.finished else self.slots)


class _Unsaved:
    """Tune pickles searchers, stoppers and callbacks into files that we never read: the journal is the truth."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Search(_Unsaved, Searcher):  # type: ignore[misc]
    """Tune's view of the ledger: the next trial, and trials whose process is lost for good."""

    def __init__(self, under: _Under) -> None:
        super().__init__()
        self._under = under

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        ledger = self._under.ledger
        config = ledger.next() if ledger.live < self._under.may() else None
        if config is None:
            self._under.finished = ledger.exhausted
            return str(Searcher.FINISHED) if self._under.finished else None  # None: ask again
        unit, home = config["number"], Path(config["folder"])
        self._under.units[trial_id], self._under.homes[unit] = unit, home
        self._under.open.add(unit)
        self._under.watch.begin(unit, home)
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        unit = self._under.units[trial_id]
        if self._under.grouped and not self._under.ledger.stopping():  # then its workers may be saving
            remove_groups(self._under.homes[unit])
            self._under.open.discard(unit)
        if error:
            hung = watch.given_up(self._under.homes[unit])  # while it was reset: Tune tries that once
            cause = str(hung or actor_failures.cause(self._under.trials.get(trial_id)))
            self._under.lost(cause)
            self._under.ledger.died(unit, cause)

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _Shared(_Unsaved, SearchGenerator):  # type: ignore[misc]
    """What keeps Tune from holding more processes than the sweep's share of the cluster.

    Tune keeps the process of a trial that has ended for the next one. Where there must be no next one for now, the
    search seems to have ended: then Tune gives it back.
    """

    def __init__(self, under: _Under) -> None:
        super().__init__(ConcurrencyLimiter(_Search(under), under.slots))  # else Tune starts one process at a time
        self._under = under

    def is_finished(self) -> bool:
        may, live = self._under.may(), self._under.ledger.live
        return super().is_finished() or (may < self._under.slots and live >= may)


class _Stop(_Unsaved, tune.Stopper):  # type: ignore[misc]
    """Sees every report before anything else in Tune does, so it is where reports enter the ledger."""

    def __init__(self, under: _Under) -> None:
        self._under = under

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        payload = dict(result)
        for bulky in ("rows", "best_metrics"):  # Tune would keep them in its state
            result.pop(bulky, None)
        unit = self._under.units[trial_id]
        stop = self._under.ledger.result(unit, payload)
        self._under.watch.end(unit) if stop else self._under.watch.heard(unit)
        return stop

    def stop_all(self) -> bool:
        """Asked several times a second, so it is also where silence is noticed."""
        watched = self._under.watch
        for unit, folder in watched.silent().items():
            watched.end(unit)
            watch.kill(folder, watched.timeout or 0.0)
        return self._under.ledger.stopping()


class _Restarts(_Unsaved, tune.Callback):  # type: ignore[misc]
    """Hears of each process that died and will be replaced; uses the time between reports to ask ahead."""

    def __init__(self, under: _Under) -> None:
        self._under = under

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._under.trials[trial.trial_id] = trial

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._under.lost(actor_failures.cause(trial))
        self._under.watch.lost(self._under.units[trial.trial_id])

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._under.ledger.ask_ahead()


def run_trials(
    spec: SweepSpec, folder: RunFolder, ledger: Ledger, slots: int, hold: Hold, lost: Callable[[str], None]
) -> None:
    """Run the sweep's trials, ``slots`` at once if ``hold`` allows it, until the ledger has none left or says stop.

    ``lost`` gets the cause of each process' death.
    """
    grouped = spec.resources.workers > 1
    under = _Under(ledger, Watch(spec.search.trial_timeout), slots, hold, lost, grouped)
    trainable = (GroupTrial, TOKEN) if grouped else (TrialActor, bundle(spec.resources))
    tuner = tune.Tuner(
        tune.with_resources(*trainable),
        tune_config=tune.TuneConfig(
            search_alg=_Shared(under),
            num_samples=-1,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"tune-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path),
            stop=_Stop(under),
            callbacks=[_Restarts(under)],
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # checkpoints are the trial's own
            verbose=0,
        ),
    )
    with deaths_are_retried(actor_failures.Died):
        tuner.fit()
    if grouped:  # those of processes that were killed when their trial had ended
        remove_groups(*(under.homes[unit] for unit in under.open))


def run_winner(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    resume: Path | None,
    selected: Progress | None,
    session: Session,
    rows: Callable[[list[Row]], None],
) -> bool:
    """Settle the sweep on what a trial had, a Ray task or a Train group; False when it was stopped."""
    folder.mkdir(exist_ok=True)
    if spec.resources.workers > 1:
        return follow(spec, folder, data, session, rows, resume=resume, selected=selected)
    need = bundle(spec.resources)
    # Ray's own retries would leave out as many reports as were given before: a lost task is started anew here.
    task = ray.remote(_winner_task).options(
        num_cpus=need["CPU"], num_gpus=need.get("GPU", 0), max_retries=0, num_returns="streaming"
    )
    lost = 0
    while True:
        ended, reports = True, task.remote(spec, folder, data, resume, selected, session.folder.stop_file)
        try:
            for payload in _arriving(reports, session):
                ended = payload["ended"] is not None  # else its node was taken away
                rows(list(messages.rows_from_json(payload["rows"])))
        except ray.exceptions.RayTaskError as error:  # its own fault: it would do so again
            raise messages.failed_there(session.folder, error) from error
        except ray.exceptions.RayError as error:
            lost += 1
            if lost > RETRIES:
                cause = f"{messages.death(str(error))} {lost} times"
                raise RunFailed(session.folder.id, cause, str(session.folder.log)) from error
        else:
            if session.interrupts.asked():
                return worker.outcome_of(folder) is not None
            if ended:
                bring(folder, worker.OUTCOME)
                return True


def _arriving(reports: Any, session: Session) -> Iterator[dict[str, Any]]:
    """What a streaming task gives, as it comes; meanwhile a stop can be asked for."""
    while True:
        ready, _ = ray.wait([reports], timeout=0.2)
        session.interrupts.asked()
        if ready:
            try:
                reference = next(reports)
            except StopIteration:
                return
            yield ray.get(reference)


def _winner_task(
    spec: ExperimentSpec, folder: Path, data: Path, resume: Path | None, selected: Progress | None, stop_file: Path
) -> Iterator[dict[str, Any]]:
    device = worker.take_device(spec.resources)
    with Carried(folder):
        if resume:
            bring(resume, checkpoint.META)
        asked, going = worker.stop_when(stop_file), this_node()
        for report in worker.reports(
            spec, folder, data, device, stop=lambda: asked() or going(), resume=resume, selected=selected
        ):
            yield messages.payload(report)
