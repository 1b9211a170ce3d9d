"""Trials on Ray: Tune places them on reused actors; what they say goes to the ledger, which decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from orchestrator.engine import Progress, Row
from orchestrator.errors import RunFailed
from orchestrator.placement.group_trial import GroupTrial, request
from orchestrator.placement.ledger import Ledger
from orchestrator.placement.trial import TrialActor
from orchestrator.session import Session
from orchestrator.spec import ExperimentSpec, SweepSpec
from orchestrator.storage import checkpoint
from orchestrator.storage.mirror import Carried, bring
from orchestrator.storage.records import RunFolder
from orchestrator.training import watch, worker
from orchestrator.training.group import bundle
from orchestrator.training.train import RETRIES, follow
from orchestrator.training.watch import Watch


class _Unsaved:
    """Tune pickles searchers and stoppers into files that we never read: the journal is the truth."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Search(_Unsaved, Searcher):  # type: ignore[misc]
    """Tune's view of the ledger: the next trial, and trials whose process is lost for good."""

    def __init__(self, ledger: Ledger, numbers: dict[str, int], watch: Watch) -> None:
        super().__init__()
        self._ledger, self._numbers, self._watch = ledger, numbers, watch

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        config = self._ledger.next()
        if config is None:
            return str(Searcher.FINISHED) if self._ledger.exhausted else None  # None: ask again
        self._numbers[trial_id] = config["number"]
        self._watch.begin(config["number"], Path(config["folder"]))
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if error:
            unit = self._numbers[trial_id]
            hung = watch.given_up(self._ledger.checkpoints(unit))  # while it was reset: Tune tries that once
            self._ledger.died(unit, hung or f"its process died {RETRIES + 1} times")

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _Stop(_Unsaved, tune.Stopper):  # type: ignore[misc]
    """Sees every report before anything else in Tune does, so it is where reports enter the ledger."""

    def __init__(self, ledger: Ledger, numbers: dict[str, int], watch: Watch) -> None:
        self._ledger, self._numbers, self._watch = ledger, numbers, watch

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        payload = dict(result)
        for bulky in ("rows", "best_metrics"):  # Tune would keep them in its state
            result.pop(bulky, None)
        unit = self._numbers[trial_id]
        stop = self._ledger.result(unit, payload)
        self._watch.end(unit) if stop else self._watch.heard(unit)
        return stop

    def stop_all(self) -> bool:
        """Asked several times a second, so it is also where silence is noticed."""
        for unit, folder in self._watch.silent().items():
            self._watch.end(unit)
            watch.kill(folder, self._watch.timeout or 0.0)
        return self._ledger.stopping()


def run_trials(spec: SweepSpec, folder: RunFolder, ledger: Ledger, slots: int) -> None:
    """Run the sweep's trials, ``slots`` at once, until the ledger has none left or says stop."""
    numbers: dict[str, int] = {}
    silence = Watch(spec.search.trial_timeout)
    flat = spec.resources.workers == 1
    trainable = (TrialActor, bundle(spec.resources)) if flat else (GroupTrial, request(spec.resources))
    tuner = tune.Tuner(
        tune.with_resources(*trainable),
        tune_config=tune.TuneConfig(
            search_alg=_Search(ledger, numbers, silence),
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"tune-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path),
            stop=_Stop(ledger, numbers, silence),
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # checkpoints are the trial's own
            verbose=0,
        ),
    )
    tuner.fit()


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
        reports = task.remote(spec, folder, data, resume, selected, session.folder.stop_file)
        try:
            for payload in _arriving(reports, session):
                rows(list(worker.rows_from_json(payload["rows"])))
        except ray.exceptions.RayTaskError as error:  # its own fault: it would do so again
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise RunFailed(session.folder.id, worker.describe(cause), str(session.folder.log)) from error
        except ray.exceptions.RayError as error:
            lost += 1
            if lost > RETRIES:
                raise RunFailed(session.folder.id, str(error).splitlines()[0], str(session.folder.log)) from error
        else:
            if not session.interrupts.asked():
                bring(folder, worker.OUTCOME)
            return worker.outcome_of(folder) is not None


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
        stop = worker.stop_when(stop_file)
        for report in worker.reports(spec, folder, data, device, stop=stop, resume=resume, selected=selected):
            yield worker.payload(report)
