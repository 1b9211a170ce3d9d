"""Trials on Ray: Tune places them on reused actors; what they say goes to the ledger, which decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from orchestrator import worker
from orchestrator.engine import Progress, Row
from orchestrator.errors import RunFailed
from orchestrator.ledger import Ledger
from orchestrator.records import RunFolder
from orchestrator.session import Session
from orchestrator.spec import ExperimentSpec, Resources, SweepSpec
from orchestrator.train import RETRIES, drain
from orchestrator.trial import TrialActor


class _Unsaved:
    """Tune pickles searchers and stoppers into files that we never read: the journal is the truth."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Search(_Unsaved, Searcher):  # type: ignore[misc]
    """Tune's view of the ledger: the next trial, and trials whose process is lost for good."""

    def __init__(self, ledger: Ledger, numbers: dict[str, int]) -> None:
        super().__init__()
        self._ledger, self._numbers = ledger, numbers

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        config = self._ledger.next()
        if config is None:
            return str(Searcher.FINISHED)
        self._numbers[trial_id] = config["number"]
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if error:
            self._ledger.died(self._numbers[trial_id], f"its process died {RETRIES + 1} times")

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _Stop(_Unsaved, tune.Stopper):  # type: ignore[misc]
    """Sees every report before anything else in Tune does, so it is where reports enter the ledger."""

    def __init__(self, ledger: Ledger, numbers: dict[str, int]) -> None:
        self._ledger, self._numbers = ledger, numbers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        payload = dict(result)
        for bulky in ("rows", "best_metrics"):  # Tune would keep them in its state
            result.pop(bulky, None)
        return self._ledger.result(self._numbers[trial_id], payload)

    def stop_all(self) -> bool:
        return self._ledger.stopping()


def run_trials(spec: SweepSpec, folder: RunFolder, ledger: Ledger, slots: int) -> None:
    """Run the sweep's trials, ``slots`` at once, until the ledger has none left or says stop."""
    numbers: dict[str, int] = {}
    tuner = tune.Tuner(
        tune.with_resources(TrialActor, _request(spec.resources)),
        tune_config=tune.TuneConfig(
            search_alg=_Search(ledger, numbers),
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"tune-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path),
            stop=_Stop(ledger, numbers),
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
    """Settle the sweep in a Ray task of the trial's size; False when it was stopped."""
    folder.mkdir(exist_ok=True)
    inbox = folder / "rows.jsonl"
    inbox.touch()
    request = _request(spec.resources)
    task = ray.remote(_winner_task).options(
        num_cpus=request["CPU"], num_gpus=request.get("GPU", 0), max_retries=RETRIES
    )
    future = task.remote(spec, folder, data, resume, selected, session.folder.stop_file)
    with inbox.open() as stream:
        done: list[Any] = []
        while not done:
            done, _ = ray.wait([future], timeout=0.2)
            session.interrupts.asked()
            drain(stream, rows)
    try:
        return bool(ray.get(future))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        text = worker.describe(cause) if isinstance(cause, Exception) else str(cause)
        raise RunFailed(session.folder.id, text, str(session.folder.log)) from error


def _winner_task(
    spec: ExperimentSpec, folder: Path, data: Path, resume: Path | None, selected: Progress | None, stop_file: Path
) -> bool:
    device = worker.take_device(spec.resources)
    with (folder / "rows.jsonl").open("a") as inbox:
        return worker.execute(
            spec,
            folder,
            data,
            device,
            deliver=lambda report: worker.send(inbox, worker.payload(report)),
            stop=worker.stop_when(stop_file),
            resume=resume,
            selected=selected,
        )


def _request(resources: Resources) -> dict[str, float]:
    request = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        request["GPU"] = resources.gpus_per_worker
    return request
