"""Promotion and rollback: move an alias to a version that passes its gates, or back. Every decision is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from orchestrator.errors import REFUSED, UNAVAILABLE, UserError, one_line
from orchestrator.promotion import evaluate_gates, gates
from orchestrator.promotion.alias_lock import Refusal, move
from orchestrator.promotion.audit_log import AuditLog, Event, now
from orchestrator.promotion.gate_results import GateResult
from orchestrator.promotion.gates import Gates
from orchestrator.registry import models as registry
from orchestrator.storage.records import user
from orchestrator.storage.settings import Settings

REASON_LENGTH = 500
"""Maximum length in characters, so that an event with all its gates fits into one MLflow tag."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of :func:`promote`. ``version`` None: the newest. ``confidence`` overrides that of the gates."""

    model: str
    alias: str
    version: str | None = None
    confidence: float | None = None
    reason: str | None = None
    force: bool = False


def promote(settings: Settings, request: Request) -> Event:
    """Point the alias at a version if it passes the gates; if the alias points at it already, do nothing.

    ``force`` skips all gates except that the model loads and predicts. Raises Refusal (exit 5) when a gate refuses or
    someone else moves the alias meanwhile, and UserError for arguments that are invalid or do not exist.
    """
    registry.check_alias(request.alias)
    _check_reason(request.reason, needed=request.force)
    with _outages_reported(request.model):
        audit_log = AuditLog(settings)
        target = registry.version(audit_log.client, request.model, request.version)
        wanted = _gates(settings, request)
        before = registry.alias_version(audit_log.client, request.model, request.alias)
        event = Event(
            *(request.model, request.alias, "promote", str(target.version), before, user(), now()),
            reason=request.reason,
            forced=request.force,
        )
        if before == event.version:
            return replace(event, outcome="done")
        if request.force:
            verdicts = evaluate_gates.force(audit_log.client, request.model, wanted, target)
        else:
            current = registry.version(audit_log.client, request.model, before) if before else None
            verdicts = evaluate_gates.judge(audit_log.client, request.model, wanted, target, current)
        return _decide(audit_log, event, verdicts)


def rollback(settings: Settings, model: str, alias: str, reason: str | None = None) -> Event:
    """Move the alias back to its version before the last promotion; each further call goes back one promotion more.

    The version must still load and predict. Raises UserError for an unknown alias and (exit 5) when there is no
    earlier version, and Refusal as :func:`promote` does.
    """
    registry.check_alias(alias)
    _check_reason(reason)
    with _outages_reported(model):
        audit_log = AuditLog(settings)
        versions = {str(version.version): version for version in registry.versions(audit_log.client, model)}
        current = registry.alias_version(audit_log.client, model, alias)
        events = audit_log.events(model, alias)
        if current is None and not events:
            raise registry.unknown_alias(audit_log.client, model, alias)
        previous = _previous_version(events, current, model, alias)
        if previous not in versions:
            raise UserError(
                f"The previous version of {model}, {previous}, was deleted", fix=_by_hand(model, alias), code=REFUSED
            )
        event = Event(model, alias, "rollback", previous, current, user(), now(), reason)
        verdicts = evaluate_gates.force(audit_log.client, model, Gates(signature="any"), versions[previous])
        return _decide(audit_log, event, verdicts)


def history(settings: Settings, model: str) -> list[Event]:
    """All events of a model, oldest first. Raises UserError for a model without events and versions."""
    with _outages_reported(model):
        audit_log = AuditLog(settings)
        events = audit_log.events(model) if "'" not in model else []
        if not events:
            registry.versions(audit_log.client, model)
        return events


def _decide(audit_log: AuditLog, event: Event, verdicts: Sequence[GateResult]) -> Event:
    """Record the event, then move the alias, or raise Refusal if a gate refused."""
    event = replace(event, at=now(), gates=tuple(asdict(verdict) for verdict in verdicts))
    failed = [verdict for verdict in verdicts if verdict.verdict == "refused"]
    if not failed:
        return move(audit_log, audit_log.open(event))
    causes = ", ".join(verdict.gate for verdict in failed) if failed[1:] else f"{failed[0].gate}: {failed[0].note}"
    raise Refusal(
        audit_log.close(audit_log.open(replace(event, outcome="refused")), "refused"),
        f"{event.model}@{event.alias} does not move to version {event.version}, refused by {causes}",
        "Nothing was changed",
    )


def _previous_version(events: Sequence[Event], current: str | None, model: str, alias: str) -> str:
    """The version of the alias before the promotion in force. Raises UserError (exit 5)."""
    promotions: list[Event] = []  # those in force, not rolled back
    moved = [event for number, event in enumerate(events) if _moved(event, events[number + 1 :], current)]
    for event in _chained(moved, current):
        if event.action == "promote":
            promotions.append(event)
        elif promotions:
            promotions.pop()
    if promotions and promotions[-1].version != current:
        raise UserError(
            f"{model}@{alias} was moved by other means since its last promotion",
            got=f"version {current}; promoted was {promotions[-1].version}",
            fix=_by_hand(model, alias),
            code=REFUSED,
        )
    if not promotions or promotions[-1].before is None:
        raise UserError(
            f"{model}@{alias} has no earlier version",
            got=f"version {current}, its first" if promotions else "no promotion",
            fix=f"See: orchestrator promotions {model}",
            code=REFUSED,
        )
    return promotions[-1].before


def _chained(events: Sequence[Event], current: str | None) -> Sequence[Event]:
    """Order events so that each begins at the version to which the one before it moved the alias.

    Earlier versions of this program ordered them by their writers' clocks, which may differ. As given where that leaves
    events over, as after a move by other means.
    """
    left = [*events]
    chain: list[Event] = []
    while last := next((event for event in reversed(left) if event.version == current), None):
        left.remove(last)
        chain.insert(0, last)
        current = last.before
    return events if left else chain


def _moved(event: Event, later: Sequence[Event], current: str | None) -> bool:
    """Whether an event moved the alias. If its writer died, the next event shows it."""
    if event.outcome != "started":
        return event.outcome == "done"
    for other in later:
        if other.before == event.version:
            return True
        if other.outcome == "done":
            return False
    return current == event.version


def _by_hand(model: str, alias: str) -> str:
    return f"Name the version: orchestrator promote {model} --to {alias} --version N"


def _gates(settings: Settings, request: Request) -> Gates:
    wanted = gates.read(settings.gates, settings.home, request.model, request.alias)
    if request.confidence is None:
        return wanted
    if not 0.5 < request.confidence < 1:
        raise UserError("The confidence is not valid", got=request.confidence, allowed="above 0.5 and below 1")
    return wanted.model_copy(update={"confidence": request.confidence})


def _check_reason(reason: str | None, *, needed: bool = False) -> None:
    if needed and not (reason or "").strip():
        raise UserError("--force needs a reason, which is recorded", fix="Add --reason TEXT")
    if len(reason or "") > REASON_LENGTH:
        raise UserError("The reason is too long", got=f"{len(reason or '')} characters", allowed=f"{REASON_LENGTH}")


@contextmanager
def _outages_reported(model: str) -> Iterator[None]:
    """Convert MLflow's exceptions to UserError."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise UserError(
            "The request to MLflow failed", got=one_line(error)[:300],
            fix=f"See: orchestrator promotions {model}", code=UNAVAILABLE,
        ) from None  # fmt: skip
