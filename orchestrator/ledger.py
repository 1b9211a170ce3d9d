"""The driver's book of a sweep: every report of every trial passes here, in-process or from a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import worker
from orchestrator.console import show
from orchestrator.runs import flat_params
from orchestrator.search import Study, Verdict
from orchestrator.session import Session
from orchestrator.spec import ExperimentSpec, SweepSpec


class Ledger:
    """Hands out trials, takes their reports, tells the study, the tracker and the console."""

    def __init__(self, study: Study, session: Session, spec: SweepSpec) -> None:
        self._study, self._session, self._spec = study, session, spec
        self._deadline = time.monotonic() + (spec.search.time_budget or float("inf"))
        self._done = sum(trial.state.is_finished() for trial in study.trials)
        self.train_seconds = sum(float(t.user_attrs.get("train_seconds", 0.0)) for t in study.trials)

    def next(self) -> dict[str, Any] | None:
        """What the process that runs the next trial needs, or None when there is nothing left to begin."""
        if self.stopping():
            return None
        trial = self._study.next()
        if trial is None:
            return None
        spec = self.experiment(trial.number, trial.params)
        if self._session.tracker:
            self._session.tracker.start(
                self._key(trial.number),
                f"trial-{trial.number:04d}",
                params=flat_params(spec),
                tags={
                    "orchestrator.kind": "trial",
                    "orchestrator.number": str(trial.number),
                    "orchestrator.repeat": spec.command(),
                },
                parent=self._session.folder.id,
            )
        return {
            "number": trial.number,
            "spec": spec.model_dump(mode="json"),
            "folder": str(self.checkpoints(trial.number)),
            "data": str(self._session.settings.data),
        }

    def experiment(self, number: int, params: Mapping[str, Any]) -> ExperimentSpec:
        from orchestrator import preflight

        return self._spec.trial(number, preflight.parameters(self._spec.workload, params))

    def checkpoints(self, number: int) -> Path:
        return self._session.folder.path / "trials" / f"{number:05d}"

    def result(self, number: int, payload: Mapping[str, Any]) -> bool:
        """Take one report of a trial; True when the trial must stop."""
        if number not in self._study.running():
            return True
        rows = list(worker.rows_from_json(payload.get("rows", [])))
        if self._session.tracker:
            self._session.tracker.log(self._key(number), rows)
        if error := payload.get("error"):
            self._ended(number, self._study.fail(number, str(error)), str(error))
            return True
        attributes = {
            name: payload[name] for name in ("epoch", "best_epoch", "best_value", "best_metrics", "train_seconds")
        }
        verdict = self._study.report(number, rows, payload["best_value"], bool(payload["ended"]), attributes)
        if verdict == "go on":
            return False
        self.train_seconds += float(payload["train_seconds"])
        self._ended(number, verdict, f"{self._study.objective.metric} {show(payload['best_value'])}")
        return True

    def died(self, number: int, cause: str) -> None:
        """A trial's process was lost more often than it is retried."""
        if number in self._study.running():
            self._ended(number, self._study.fail(number, cause), cause)

    def stopping(self) -> bool:
        return self._session.interrupts.asked() or self.time_is_up()

    def time_is_up(self) -> bool:
        return time.monotonic() >= self._deadline

    def close(self) -> None:
        """Settle what did not end: given up when the time is spent, else left for ``--resume``."""
        for number in self._study.running():
            if self.time_is_up():
                self._study.cut(number, "the time budget was spent")
            if self._session.tracker:
                self._session.tracker.end(self._key(number), "KILLED")

    def _ended(self, number: int, verdict: Verdict, detail: str) -> None:
        self._done += 1
        tracker, total = self._session.tracker, self._spec.search.trials
        if tracker:
            tracker.tag(self._key(number), {"orchestrator.state": verdict})
            tracker.end(self._key(number), "FAILED" if verdict == "failed" else "FINISHED")
        self._session.console.say(f"trial {number:>4} {verdict:<8} {detail}")
        self._session.console.progress(self._done, total, "trial")

    def _key(self, number: int) -> str:
        return f"{self._session.folder.id}/{number}"
