"""An alias moved by one at a time: MLflow has no compare-and-swap, so the book of events settles whose turn it is.

Who is about to move an alias opens an event first and reads the book after, so of two at least one sees the other.
The later one gives way; the earlier one waits until that is written down and then looks whether the alias still is
where its gates saw it. An event that stays open for longer than :data:`LIVE_SECONDS` is a dead writer's and holds
no one up; a writer who was taken for dead and moves after all finds that in the book, and puts the alias back.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from orchestrator.errors import REFUSED, UserError
from orchestrator.promotion.audit_log import AuditLog, Event
from orchestrator.registry import models as registry

LIVE_SECONDS = 30.0
POLL_SECONDS = 0.2


class Refusal(UserError):
    """The alias was not moved, or somebody else moved it at the same moment. ``event`` is the record of it."""

    def __init__(self, event: Event, what: str, fix: str, got: str | None = None) -> None:
        super().__init__(what, got=got, fix=fix, code=REFUSED)
        self.event = event


def move(audit_log: AuditLog, event: Event) -> Event:
    """Point the alias of an open event at its version; returns the event, done.

    Raises Refusal, with the event closed, when somebody else moves the alias too: theirs stays.
    """
    seen = _turn(audit_log, event)
    if _held(audit_log, event) != event.before:
        raise _overtaken(audit_log, event)
    audit_log.client.set_registered_model_alias(event.model, event.alias, event.version)
    if _held(audit_log, event) != event.version:
        raise _overtaken(audit_log, event)
    if theirs := [other for other in _others(audit_log, event) if other.outcome == "done" and other.id not in seen]:
        audit_log.client.set_registered_model_alias(event.model, event.alias, theirs[-1].version)
        raise _overtaken(audit_log, event)
    return audit_log.close(event, "done")


def _turn(audit_log: AuditLog, event: Event) -> set[str]:
    """Wait for our turn; returns the ids of the other events that are done by then. Raises Refusal."""
    while True:
        others = _others(audit_log, event)
        rivals = [other for other in others if other.outcome == "started" and _age(other) < LIVE_SECONDS]
        if not rivals:
            return {other.id for other in others if other.outcome == "done"}
        rival = min(rivals, key=_order)
        if _order(rival) < _order(event) or _age(event) > LIVE_SECONDS / 2:
            raise Refusal(
                audit_log.close(event, "refused"),
                f"Somebody else is moving {event.model}@{event.alias} at this moment",
                "Nothing was changed by this; look, and try again",
                got=f"{rival.action} to version {rival.version} by {rival.by}, begun at {rival.at}",
            )
        time.sleep(POLL_SECONDS)


def _others(audit_log: AuditLog, event: Event) -> list[Event]:
    return [other for other in audit_log.events(event.model, event.alias) if other.id != event.id]


def _order(event: Event) -> tuple[str, str]:
    """Any order will do, as long as both see the same one."""
    return event.at, event.id


def _age(event: Event) -> float:
    """Seconds since it was opened."""
    return (datetime.now(UTC) - datetime.fromisoformat(event.at)).total_seconds()


def _held(audit_log: AuditLog, event: Event) -> str | None:
    return registry.alias_version(audit_log.client, event.model, event.alias)


def _overtaken(audit_log: AuditLog, event: Event) -> Refusal:
    place, found = f"{event.model}@{event.alias}", _held(audit_log, event)
    return Refusal(
        audit_log.close(event, "refused"),
        f"Somebody else moved {place} meanwhile: {'the alias is gone' if found is None else f'it is version {found}'}",
        "That stays as it is; look, and promote again",
    )
