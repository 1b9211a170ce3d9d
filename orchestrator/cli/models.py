"""The verbs of the model registry: promote, rollback, promotions and predict."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import reachable, resolved
from orchestrator.config.options import Json, Tracking
from orchestrator.console import Console

if TYPE_CHECKING:
    from orchestrator.promotion.audit_log import Event
    from orchestrator.storage.settings import Settings

app = typer.Typer()


Model = Annotated[str, typer.Argument(help="Registered model.")]
Reason = Annotated[str | None, typer.Option("--reason", help="The reason; it is recorded.")]


@app.command()
def promote(
    model: Model,
    to: Annotated[str, typer.Option("--to", metavar="ALIAS", help="Alias, such as champion.")],
    version: Annotated[str | None, typer.Option("--version", help="Version.  [default: the newest]")] = None,
    gates: Annotated[
        str | None, typer.Option("--gates", metavar="FILE", help="Gates.  [default: gates.yaml in the home]")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option("--confidence", help="Confidence of the gates better and guard.  [default: as in the gates, .95]"),
    ] = None,
    reason: Reason = None,
    force: Annotated[bool, typer.Option("--force", help="Skip the gates; needs --reason.")] = False,
    as_json: Json = False,
    tracking: Tracking = None,
) -> None:
    """Point an alias at a version that passes its gates.

    In every case the model must load and predict.

    Example: orchestrator promote rec-ml-100k --to champion
    """
    settings = resolved(tracking=tracking, gates=gates)
    reachable(settings)
    from orchestrator.promotion import aliases

    request = aliases.Request(model, to, version, confidence, reason, force)
    decided(settings, lambda: aliases.promote(settings, request), as_json)


@app.command()
def rollback(
    model: Model,
    alias: Annotated[str, typer.Option("--alias", help="Alias, such as champion.")],
    reason: Reason = None,
    as_json: Json = False,
    tracking: Tracking = None,
) -> None:
    """Move an alias back to its version before the last promotion.

    Example: orchestrator rollback rec-ml-100k --alias champion --reason "clicks fell"
    """
    settings = resolved(tracking=tracking)
    reachable(settings)
    from orchestrator.promotion import aliases

    decided(settings, lambda: aliases.rollback(settings, model, alias, reason), as_json)


@app.command()
def promotions(model: Model, as_json: Json = False, tracking: Tracking = None) -> None:
    """List a model's promotions, refusals and rollbacks.

    Shows person, time and reason.

    Example: orchestrator promotions rec-ml-100k
    """
    settings = resolved(tracking=tracking)
    reachable(settings)
    from orchestrator.promotion import aliases

    events = [event.to_json() for event in aliases.history(settings, model)]
    if as_json:
        print(json.dumps(events))
    elif events:
        names = ("action", "outcome", "alias", "before", "version", "by", "forced", "reason")
        rows = [
            [event["at"][:19].replace("T", " "), *({True: "yes", False: ""}.get(event[n], event[n]) for n in names)]
            for event in events
        ]
        Console().table(f"Promotions of {model}", ["when (UTC)", *names], rows)
    else:
        print(f"{model} has not been promoted yet")


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="MODEL@ALIAS, MODEL/VERSION or a model URI.")],
    source: Annotated[str, typer.Option("--input", help="Parquet, CSV or JSON lines; - reads standard input.")],
    target: Annotated[
        str | None, typer.Option("--output", help="File to write.  [default: JSON lines to stdout]")
    ] = None,
    params: Annotated[list[str] | None, typer.Argument(metavar="key=value ...", show_default=False)] = None,
    tracking: Tracking = None,
) -> None:
    """Predict for the rows of a file with a registered model.

    key=value sets a parameter of the model, such as k=10.

    Example: orchestrator predict rec-ml-100k@champion --input users.csv --output top.parquet
    """
    from orchestrator.config.parsing import read_overrides

    given = read_overrides(params or [])
    settings = resolved(tracking=tracking)
    reachable(settings)
    from orchestrator.registry import prediction

    prediction.predict(settings, model, source, target, given)


def decided(settings: Settings, decide: Callable[[], Event], as_json: bool) -> None:
    """Show a decision with its gates, also a refusal, and send the notification."""
    from orchestrator.promotion.alias_lock import Refusal

    try:
        event = decide()
    except Refusal as refusal:
        _show(refusal.event, as_json)
        _notify(settings, refusal.event, str(refusal))
        raise
    _show(event, as_json)
    alias = f"{event.model}@{event.alias}"
    before = f" (was version {event.before})" if event.before else ""
    if not event.id:
        text = f"{alias} is version {event.version} already"
    else:
        text = f"{alias} is now version {event.version}{before}"
        _notify(settings, event, text)
    if not as_json:
        print(text)


def _show(event: Event, as_json: bool) -> None:
    if as_json:
        print(json.dumps(event.to_json()), flush=True)
    elif event.gates:
        columns = ["gate", "before", "after", "verdict", "note"]
        rows = [[gate[name] for name in columns] for gate in event.gates]
        Console().table(f"{event.model} version {event.version}, for {event.alias}", columns, rows)


def _notify(settings: Settings, event: Event, message: str) -> None:
    from orchestrator.storage.notifications import Notifier

    notifier = Notifier(settings.notify, {"id": event.id, "kind": event.action, "workload": event.model})
    notifier.send("gate", event.outcome, message)
    if trouble := notifier.close():
        print(trouble, file=sys.stderr)
