"""Promotion: an alias moves to a version that passed its gates, or back; every decision is an event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from orchestrator.errors import REFUSED, UNAVAILABLE, UserError, one_line
from orchestrator.promotion import evaluate_gates, gates
from orchestrator.promotion.alias_lock import Refusal, move
from orchestrator.promotion.audit_log import AuditLog, Event, now
from orchestrator.promotion.gate_results import Verdict
from orchestrator.promotion.gates import Gates
from orchestrator.registry import models as registry
from orchestrator.storage.records import user
from orchestrator.storage.settings import Settings

REASON_LENGTH = 500
"""Characters; with a reason and all its gates an event fits into a tag of MLflow's."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of :func:`promote`. ``version`` None is the newest; ``confidence`` goes before the gates' own."""

    model: str
    alias: str
    version: str | None = None
    confidence: float | None = None
    reason: str | None = None
    force: bool = False


def promote(settings: Settings, request: Request) -> Event:
    """Point the alias at a version that passes the gates. One that it points at already stays, without an event.

    ``force`` skips all gates but that the model loads and predicts. Raises Refusal (exit 5) when a gate says no or
    somebody else moves the alias meanwhile, and UserError for what is not there or not valid.
    """
    registry.check_alias(request.alias)
    _check_reason(request.reason, needed=request.force)
    with _answering(request.model):
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
            found = evaluate_gates.force(audit_log.client, request.model, wanted, target)
        else:
            current = registry.version(audit_log.client, request.model, before) if before else None
            found = evaluate_gates.judge(audit_log.client, request.model, wanted, target, current)
        return _decide(audit_log, event, found)


def rollback(settings: Settings, model: str, alias: str, reason: str | None = None) -> Event:
    """Put the alias back to what it was before its last promotion; called again, before the one before that.

    The version must still load and predict. Raises UserError for an alias that never was one and (exit 5) when there
    is nothing to go back to, and Refusal as :func:`promote` does.
    """
    registry.check_alias(alias)
    _check_reason(reason)
    with _answering(model):
        audit_log = AuditLog(settings)
        known = {str(version.version): version for version in registry.versions(audit_log.client, model)}
        current = registry.alias_version(audit_log.client, model, alias)
        events = audit_log.events(model, alias)
        if current is None and not events:
            raise registry.unknown_alias(audit_log.client, model, alias)
        back = _back(events, current, model, alias)
        if back not in known:
            raise UserError(
                f"Version {back} of {model}, to go back to, has been deleted", fix=_by_hand(model, alias), code=REFUSED
            )
        event = Event(model, alias, "rollback", back, current, user(), now(), reason)
        return _decide(
            audit_log, event, evaluate_gates.force(audit_log.client, model, Gates(signature="any"), known[back])
        )


def history(settings: Settings, model: str) -> list[Event]:
    """Every event of a model, oldest first. Raises UserError for a model that has neither events nor versions."""
    with _answering(model):
        audit_log = AuditLog(settings)
        found = audit_log.events(model) if "'" not in model else []
        if not found:
            registry.versions(audit_log.client, model)
        return found


def _decide(audit_log: AuditLog, event: Event, found: Sequence[Verdict]) -> Event:
    """Write the event down, then move the alias or refuse to."""
    event = replace(event, at=now(), gates=tuple(asdict(verdict) for verdict in found))
    failed = [verdict for verdict in found if verdict.verdict == "refused"]
    if not failed:
        return move(audit_log, audit_log.open(event))
    causes = ", ".join(verdict.gate for verdict in failed) if failed[1:] else f"{failed[0].gate}: {failed[0].note}"
    raise Refusal(
        audit_log.close(audit_log.open(replace(event, outcome="refused")), "refused"),
        f"{event.model}@{event.alias} does not move to version {event.version}, refused by {causes}",
        "Nothing was changed",
    )


def _back(events: Sequence[Event], current: str | None, model: str, alias: str) -> str:
    """The version that held the alias before the promotion that holds it now. Raises UserError (exit 5)."""
    held: list[Event] = []
    for number, event in enumerate(events):
        if not _moved(event, events[number + 1 :], current):
            continue
        if event.action == "promote":
            held.append(event)
        elif held:
            held.pop()
    if held and held[-1].version != current:
        raise UserError(
            f"{model}@{alias} was moved by other means since its last promotion",
            got=f"version {current}; promoted was {held[-1].version}",
            fix=_by_hand(model, alias),
            code=REFUSED,
        )
    if not held or held[-1].before is None:
        raise UserError(
            f"{model}@{alias} has nothing to go back to",
            got=f"version {current}, its first" if held else "no promotion",
            fix=f"See: orchestrator promotions {model}",
            code=REFUSED,
        )
    return held[-1].before


def _moved(event: Event, later: Sequence[Event], current: str | None) -> bool:
    """Whether an event moved the alias. Whose writer died cannot say so: it shows in what was found there next."""
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
        raise UserError("--force needs a reason, which is kept", fix="Add --reason TEXT")
    if len(reason or "") > REASON_LENGTH:
        raise UserError("The reason is too long", got=f"{len(reason or '')} characters", allowed=f"{REASON_LENGTH}")


@contextmanager
def _answering(model: str) -> Iterator[None]:
    """A store that goes away in the middle is a sentence, too."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise UserError(
            "MLflow did not do it", got=one_line(error)[:300],
            fix=f"Look with: orchestrator promotions {model}", code=UNAVAILABLE,
        ) from None  # fmt: skip
