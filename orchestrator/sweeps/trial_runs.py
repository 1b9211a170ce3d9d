"""MLflow runs of a sweep's trials."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.config.spec import ExperimentSpec, Resources, SweepSpec
from orchestrator.engine.loop import Row
from orchestrator.runs import micro_batches
from orchestrator.runs.driver import flat_params
from orchestrator.runs.live_view import settings_text
from orchestrator.runs.session import Session
from orchestrator.search.pbt import Population
from orchestrator.search.study import Study, Trial, TrialDecision

MAX_NAME = 100
"""Maximum length of a trial's name in MLflow."""


class TrialRuns:
    """Opens, writes and ends the MLflow run of each seed run. Without a tracker it only counts which are open."""

    def __init__(self, study: Study, session: Session, spec: SweepSpec) -> None:
        self._study = study
        self._session = session
        self._spec = spec
        self._micro_batches: dict[int, int] = {}
        self.open: set[int] = set()
        """Seed runs whose MLflow run this process has opened and not ended."""
        recorded = session.folder.record["spec"].get("sweep", {}).get("resources")
        self._resources = Resources.model_validate(recorded) if recorded else spec.resources
        """Those that MLflow has: parameters cannot change, and a resume may have other resources."""

    def name(self, seed_run: int) -> str:
        number, seed = self._study.trial_of(seed_run)
        return f"trial {number}" + (f" seed {seed}" if self._spec.search.seeds > 1 else "")

    def key(self, seed_run: int) -> str:
        """The tracker's key of a seed run."""
        number, seed = self._study.trial_of(seed_run)
        return f"{self._session.folder.id}/{number}" + (f"/{seed}" if self._spec.search.seeds > 1 else "")

    def opened(self, number: int) -> str | None:
        """The MLflow id of a trial's run, of several seeds that of the first one. None if it is not open yet."""
        tracker = self._session.tracker
        return tracker.opened(self.key(number * self._spec.search.seeds)) if tracker else None

    def start(self, trial: Trial, first: ExperimentSpec, now: ExperimentSpec, shown: str) -> None:
        """Open a trial's run, unless it is open. ``first`` is how the trial started and ``now`` how it goes on."""
        begun = trial.seed_run in self.open
        self.open.add(trial.seed_run)
        if begun or not (tracker := self._session.tracker):
            return
        key = self.key(trial.seed_run)
        tracker.start(
            key,
            f"{self.name(trial.seed_run)} {shown}"[:MAX_NAME],
            params=flat_params(first.model_copy(update={"resources": self._resources})),
            tags={
                "orchestrator.kind": "trial",
                "orchestrator.number": str(trial.number),
                "orchestrator.seed": str(trial.seed),
                **({"orchestrator.repeat_of": str(trial.repeat_of)} if trial.repeat_of is not None else {}),
                "orchestrator.repeat": first.command(),
                "orchestrator.spec": first.model_dump_json(),
            },
            parent=self._session.folder.id,
        )
        self._session.trained_on(key, now.params)

    def log_member(self, trial: Trial, study: Population) -> None:
        """Log a member's values since its last meeting as metrics, and from whom it took over as a tag.

        Parameters in MLflow cannot change: they are those that the member began with.
        """
        values = {name: trial.params[name] for name in study.changeable if name in trial.params}
        numbers = {f"pbt/{k}": float(v) for k, v in values.items() if type(v) in (int, float)}
        self.log(trial.seed_run, [Row(study.met, time.time(), numbers)])
        searched = self._spec.searched
        taken = [
            f"after epoch {step['epoch']} from trial {step['from']}: {settings_text(searched(step['params']))}"
            for step in study.lineage(trial.number)
        ]
        self._tag(trial.seed_run, {"orchestrator.lineage": "; ".join(taken)} if taken else {})

    def log(self, seed_run: int, rows: Sequence[Row]) -> None:
        if self._session.tracker:
            self._session.tracker.log(self.key(seed_run), rows)

    def note_micro_batches(self, seed_run: int, parts: int | None) -> None:
        """Note a trial's number of micro-batches, where the plan leaves it open, when it changes."""
        if parts is None or self._micro_batches.get(seed_run) == parts:
            return
        self._micro_batches[seed_run] = parts
        if parts > 1:
            self._session.console.event(f"{self.name(seed_run)} trains in {parts} micro-batches of a batch")
        self._tag(seed_run, {micro_batches.TAG: str(parts)})

    def end(self, seed_run: int, verdict: TrialDecision, detail: str, device_seconds: float) -> None:
        """End the run of a trial with a result."""
        tags = {"orchestrator.state": verdict, "orchestrator.device_seconds": f"{device_seconds:.1f}"}
        if verdict == "failed":
            self._end(seed_run, "FAILED", tags | {"orchestrator.cause": detail})
        else:
            self._end(seed_run, "FINISHED", tags)

    def kill(self, seed_run: int) -> None:
        """End the run of a trial without a result."""
        self._end(seed_run, "KILLED", {})

    def kill_orphan(self, seed_run: int) -> None:
        """End the run that a dead process has opened."""
        tracker, key = self._session.tracker, self.key(seed_run)
        if tracker and seed_run not in self.open and tracker.opened(key):
            tracker.end(key, "KILLED")

    def _end(self, seed_run: int, status: Literal["FINISHED", "FAILED", "KILLED"], tags: Mapping[str, str]) -> None:
        if self._session.tracker and seed_run in self.open:
            self._tag(seed_run, tags)
            self._session.tracker.end(self.key(seed_run), status)
        self.open.discard(seed_run)

    def _tag(self, seed_run: int, tags: Mapping[str, str]) -> None:
        if self._session.tracker and tags:
            self._session.tracker.tag(self.key(seed_run), tags)
