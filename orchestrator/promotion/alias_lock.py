"""Mutual exclusion for moving an alias. MLflow has no compare-and-swap, so the audit log decides who may write.

A writer first opens an event, then reads the log, so that of two writers at least one sees the other. The later one
gives up. The earlier one waits until the other's event is closed, then checks that the alias has not moved since its
gates were evaluated, and marks its own event as moving before it writes.

A writer that waits marks the other's event as dead if it has been open for longer than :data:`LIVE_SECONDS`. An
event takes one mark (a parameter of an MLflow run is written once), so that a writer that was taken for dead, by
whichever clock, moves nothing. One that is marked as moving for too long died at its write and is ignored. If it
writes after all, it sees the other's event and restores the alias.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from orchestrator.errors import REFUSED, UserError
from orchestrator.promotion.audit_log import AuditLog, Event
from orchestrator.registry import models as registry

LIVE_SECONDS = 30.0
POLL_SECONDS = 0.2
MOVING, DEAD = "moving", "dead"
"""Marks of an event."""


class Refusal(UserError):
    """The alias was not moved, or another writer moved it at the same moment. ``event`` is the record of it."""

    def __init__(self, event: Event, what: str, fix: str, got: str | None = None) -> None:
        super().__init__(what, got=got, fix=fix, code=REFUSED)
        self.event = event


def move(audit_log: AuditLog, event: Event) -> Event:
    """Point the alias of an open event at its version and close the event as done.

    Raises Refusal, with the event closed, if another writer moves the alias too; that writer's version stays.
    """
    seen = _wait_for_turn(audit_log, event)
    if _current_version(audit_log, event) != event.before:
        raise _overtaken(audit_log, event)
    if not audit_log.settle(event, MOVING):
        raise _overtaken(audit_log, event)
    audit_log.client.set_registered_model_alias(event.model, event.alias, event.version)
    if _current_version(audit_log, event) != event.version:
        raise _overtaken(audit_log, event)
    if theirs := [other for other in _others(audit_log, event) if other.outcome == "done" and other.id not in seen]:
        audit_log.client.set_registered_model_alias(event.model, event.alias, theirs[-1].version)
        raise _overtaken(audit_log, event)
    return audit_log.close(event, "done")


def _wait_for_turn(audit_log: AuditLog, event: Event) -> set[str]:
    """Wait until no other event is open; return the ids of the other events that are done by then. Raises Refusal."""
    began = time.monotonic()
    while True:
        others = _others(audit_log, event)
        late = time.monotonic() - began > LIVE_SECONDS / 2
        rivals = [other for other in others if other.outcome == "started" and not _is_dead(audit_log, other, late)]
        if not rivals:
            return {other.id for other in others if other.outcome == "done"}
        rival = min(rivals, key=_order)
        if late or (_order(rival) < _order(event) and _age(rival) < LIVE_SECONDS):
            raise Refusal(
                audit_log.close(event, "refused"),
                f"Someone else is moving {event.model}@{event.alias} at this moment",
                "This command changed nothing; check the alias, and try again",
                got=f"{rival.action} to version {rival.version} by {rival.by}, begun at {rival.at}",
            )
        time.sleep(POLL_SECONDS)


def _others(audit_log: AuditLog, event: Event) -> list[Event]:
    return [other for other in audit_log.events(event.model, event.alias) if other.id != event.id]


def _order(event: Event) -> tuple[str, str]:
    """Sort key of events; it must be the same for all writers."""
    return event.at, event.id


def _is_dead(audit_log: AuditLog, event: Event, late: bool) -> bool:
    """Whether an event's writer moves nothing any more: it is stopped by this call, or has been moving for too long."""
    age = _age(event)
    return age >= LIVE_SECONDS and (audit_log.settle(event, DEAD) or late or age >= 10 * LIVE_SECONDS)


def _age(event: Event) -> float:
    """Seconds between this machine's clock and the writer's when it opened the event, whichever is ahead."""
    return abs((datetime.now(UTC) - datetime.fromisoformat(event.at)).total_seconds())


def _current_version(audit_log: AuditLog, event: Event) -> str | None:
    return registry.alias_version(audit_log.client, event.model, event.alias)


def _overtaken(audit_log: AuditLog, event: Event) -> Refusal:
    version = _current_version(audit_log, event)
    now = "it was deleted" if version is None else f"it is version {version}"
    return Refusal(
        audit_log.close(event, "refused"),
        f"Someone else moved {event.model}@{event.alias} meanwhile: {now}",
        "This command leaves it unchanged; check the alias, and promote again",
    )
