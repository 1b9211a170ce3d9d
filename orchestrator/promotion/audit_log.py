"""Audit log of aliases: one permanent event for every promotion, refusal and rollback.

An event is a run of the MLflow experiment ``promotions``, with its record in tags and in ``event.json``. Everyone who
uses the tracking store sees it, two writers never write to the same file, and it remains when the version, the
registered model or the training run is deleted. Two tags of a version have its last event: a sentence and the run's id.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UNAVAILABLE, UserError, restore_experiment
from orchestrator.provenance import record as provenance
from orchestrator.registry import models as registry
from orchestrator.storage.records import user
from orchestrator.storage.settings import Settings
from orchestrator.tracking import store
from orchestrator.tracking.client import Client, all_runs

EXPERIMENT = "promotions"
FORMAT = 1
TAG = "orchestrator.event"
FILE = "event.json"
FATE = "orchestrator.fate"
Action = Literal["promote", "rollback"]
Outcome = Literal["started", "done", "refused"]


@dataclass(frozen=True)
class Event:
    """One decision about ``model@alias``: from version ``before`` (None: no version) to ``version``.

    ``outcome`` is ``done``, ``refused`` (the alias was not moved), or ``started`` (its writer is still running, or
    died). ``gates`` are the rows of the verdicts.
    """

    model: str
    alias: str
    action: Action
    version: str
    before: str | None
    by: str
    at: str
    reason: str | None = None
    forced: bool = False
    gates: tuple[Mapping[str, Any], ...] = ()
    outcome: Outcome = "started"
    id: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "gates": [dict(gate) for gate in self.gates]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Event:
        """Raises UserError for an event of another format."""
        if values["format"] != FORMAT:
            raise UserError(
                "The audit log has an event of another format", got=values["format"], allowed=FORMAT,
                fix="Use the version of orchestrator that wrote it, or a newer one",
            )  # fmt: skip
        kept = {name: value for name, value in values.items() if name != "format"}
        return cls(**{**kept, "gates": tuple(values["gates"])})


@dataclass
class AuditLog:
    """The promotion events in a tracking store."""

    settings: Settings
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = registry.client(self.settings)

    def open(self, event: Event) -> Event:
        """Record an event before the alias is moved; return it with its id."""
        uri = self.settings.tracking
        assert uri is not None
        self._experiments()
        experiment = Client(uri, EXPERIMENT, store.ensure(uri, self.settings.home)).experiment
        run = self.client.create_run(
            experiment,
            self._moment(event, experiment),
            tags={"mlflow.user": user(), "mlflow.source.name": provenance.command(), **_tags(event)},
            run_name=f"{event.action} {event.model}@{event.alias}",
        )
        event = replace(event, id=run.info.run_id)
        self.client.log_dict(event.id, event.to_json(), FILE)
        return event

    def _moment(self, event: Event, experiment: str) -> int:
        """The start of the event's run in milliseconds: after the model's other events, whatever their clocks say."""
        query, order = f"tags.`orchestrator.model` = '{event.model}'", ["attributes.start_time DESC"]
        latest = self.client.search_runs([experiment], query, order_by=order, max_results=1)
        moment = int(datetime.fromisoformat(event.at).timestamp() * 1000)
        return max([moment, *(int(run.info.start_time) + 1 for run in latest)])

    def close(self, event: Event, outcome: Outcome) -> Event:
        """Record the outcome of an event, also in two tags of the version."""
        event = replace(event, outcome=outcome)
        from mlflow.entities import RunTag

        self.client.log_batch(event.id, tags=[RunTag(name, value) for name, value in _tags(event).items()])
        forced = ", forced" * event.forced
        about = f"{event.action} {event.alias} {outcome}{forced}, {event.at[:10]}, {event.by}"
        for name, value in {"orchestrator.promotion": about, "orchestrator.promotion.event": event.id}.items():
            self.client.set_model_version_tag(event.model, event.version, name, value)
        self.client.set_terminated(event.id, "FINISHED" if outcome == "done" else "FAILED")
        with suppress(Exception):  # the alias has moved, and the tags have the outcome
            self.client.log_dict(event.id, event.to_json(), FILE)
        return event

    def settle(self, event: Event, fate: str) -> bool:
        """Write the fate of an open event, unless it has one. Returns whether it has this one.

        A parameter of an MLflow run is written once: of two writers at once, one is refused.
        """
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_param(event.id, FATE, fate)
        except MlflowException as error:
            if not registry.refused(error):
                raise
            return bool(self.client.get_run(event.id).data.params.get(FATE) == fate)
        return True

    def events(self, model: str, alias: str | None = None) -> list[Event]:
        """All events of a model, oldest first. Raises UserError if the experiment with the log was deleted."""
        if "'" in model:  # MLflow cannot search for it, and orchestrator registers and promotes no such name
            return []
        runs = all_runs(self.client.search_runs, self._experiments(), f"tags.`orchestrator.model` = '{model}'")
        events = [self._read(run) for run in runs]
        return [event for event in events if alias in (None, event.alias)]

    def _experiments(self) -> list[str]:
        """The id of the experiment with the log; empty before the first event."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment and experiment.lifecycle_stage == "deleted":
            raise UserError(
                f"The experiment {EXPERIMENT}, which has the log of promotions, was deleted",
                fix=restore_experiment(experiment.experiment_id), code=UNAVAILABLE,
            )  # fmt: skip
        return [experiment.experiment_id] if experiment else []

    def _read(self, run: Any) -> Event:
        """Read an event from the tag, or from the run's file if MLflow truncated the tag."""
        tags = run.data.tags
        try:
            event = Event.from_json(json.loads(tags.get(TAG, "")))
        except json.JSONDecodeError:
            with tempfile.TemporaryDirectory() as folder:
                file = self.client.download_artifacts(run.info.run_id, FILE, folder)
                event = Event.from_json(json.loads(Path(file).read_text()))
        return replace(event, id=run.info.run_id, outcome=tags.get("orchestrator.outcome", event.outcome))


def now() -> str:
    """The time in UTC with milliseconds, by this machine's clock."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _tags(event: Event) -> dict[str, str]:
    """The event as a tag, and its fields as tags of their own for MLflow's UI."""
    names = ("model", "alias", "action", "outcome", "version", "by", "at")
    fields = {name: getattr(event, name) for name in names}
    fields |= {"before": event.before or "none", "reason": event.reason or "", "forced": str(event.forced).lower()}
    return {TAG: json.dumps(event.to_json()), **{f"orchestrator.{name}": text for name, text in fields.items()}}
