"""The verbs of the model registry: promote, rollback, promotions, predict, export, evaluate, index and serve."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import reachable
from orchestrator.config.options import Json, RayAddress, Storage, Tracking
from orchestrator.console import Console, json_line

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
    settings = reachable(tracking=tracking, gates=gates)
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
    settings = reachable(tracking=tracking)
    from orchestrator.promotion import aliases

    decided(settings, lambda: aliases.rollback(settings, model, alias, reason), as_json)


@app.command()
def promotions(model: Model, as_json: Json = False, tracking: Tracking = None) -> None:
    """List a model's promotions, refusals and rollbacks.

    Shows person, time and reason.

    Example: orchestrator promotions rec-ml-100k
    """
    settings = reachable(tracking=tracking)
    from orchestrator.promotion import aliases

    events = [event.to_json() for event in aliases.history(settings, model)]
    if as_json:
        print(json_line(events))
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
    settings = reachable(tracking=tracking)
    from orchestrator.registry import prediction

    prediction.predict(settings, model, source, target, given)


@app.command("export")
def export_command(
    model: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="MODEL@ALIAS or MODEL/VERSION.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="New or empty folder.")],
    form: Annotated[
        str,
        typer.Option("--format", help="sentence-transformers, transformers, onnx, embeddings or faiss."),
    ],
    source: Annotated[
        str | None, typer.Option("--input", help="Rows to embed with an encoder: Parquet, CSV or JSON lines.")
    ] = None,
    tracking: Tracking = None,
) -> None:
    """Write a registered model in the format of another tool.

    With a model card: data, test values with intervals, the command that reproduces it, limits.

    Example: orchestrator export sts@champion --to sts --format sentence-transformers
    """
    settings = reachable(tracking=tracking)
    from orchestrator.registry.export.export import export

    print(export(settings, model, to, form, source))


@app.command("evaluate")
def evaluate_command(
    model: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="MODEL@ALIAS or MODEL/VERSION.")],
    data: Annotated[
        list[str], typer.Option("--data", metavar="NAME|FOLDER", help="Collection to rank; repeatable, for their mean.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="New or empty folder.")],
    depth: Annotated[int, typer.Option("--depth", help="Documents of a query, at most.")] = 100,
    tracking: Tracking = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Rank retrieval collections with a registered model.

    Writes runs and qrels of the test queries in TREC's form, metrics, and their mean over the collections.

    Example: orchestrator evaluate rank@champion --data scifact --data nfcorpus --to runs
    """
    settings = reachable(tracking=tracking, storage=storage)
    from orchestrator.registry.retrieval import evaluate

    measured = evaluate(settings, model, data, to, depth, Console(json=as_json).say)
    if as_json:
        print(json_line(measured))


@app.command("index")
def index_command(
    model: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="Model of lifelong whose index it is.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Its copy, which the first change makes.")],
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="FILE", help="Documents to delete: a column document.")
    ] = None,
    embed_again: Annotated[
        str | None, typer.Option("--embed-again", metavar="NEW@ALIAS", help="Model to embed documents again with.")
    ] = None,
    share: Annotated[
        float | None, typer.Option("--share", help="Share of the documents to embed again, in all.  [default: 1]")
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="newest, oldest or random ones first.  [default: newest]")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Documents stored at once.  [default: 1024]")] = None,
    add: Annotated[
        str | None, typer.Option("--add", metavar="FILE", help="New or changed documents: columns document, text.")
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Remove rows and texts that are out of use.")] = False,
    search: Annotated[
        str | None, typer.Option("--search", metavar="FILE", help="Queries to search for: a column query.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--output", help="File of --search.  [default: JSON lines to stdout]")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Documents of a query.  [default: 10]")] = None,
    tracking: Tracking = None,
) -> None:
    """Change and search a copy of a lifelong model's index.

    Without a change it shows the state. A call that was killed goes on when it is repeated; other processes may search.

    Example: orchestrator index search@champion --to live --embed-again new@latest --share 0.1
    """
    settings = reachable(tracking=tracking)
    from orchestrator.registry import live_index

    request = live_index.Request(to, delete, embed_again, share, order, batch, add, compact, search, target, k)
    live_index.run(settings, model, request, Console(json=search is not None).say)


@app.command("serve")
def serve_command(
    model: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="MODEL@ALIAS or MODEL/VERSION.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen at; there is no login.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port.")] = 8000,
    replicas: Annotated[int, typer.Option("--replicas", help="Processes that answer.")] = 1,
    look: Annotated[float, typer.Option("--look", help="Seconds between two looks at the alias.")] = 5.0,
    tracking: Tracking = None,
    ray_address: RayAddress = None,
) -> None:
    """Serve a registered model over HTTP with Ray Serve.

    An alias that moves is followed. POST /invocations is that of MLflow's own server; GET /health gives the version.

    Example: orchestrator serve rec@champion --replicas 2
    """
    settings = reachable(tracking=tracking, ray_address=ray_address)
    from orchestrator.cli import serving

    serving.run(settings, model, host=host, port=port, replicas=replicas, look_seconds=look)


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
        print(json_line(event.to_json()), flush=True)
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
