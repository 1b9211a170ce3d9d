"""The verbs of the model registry: promote and predict."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.options import Json, Tracking
from orchestrator.verbs.common import out, reachable, resolved

app = typer.Typer()


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="Registered model.")],
    to: Annotated[str, typer.Option("--to", metavar="ALIAS", help="Alias, such as champion.")],
    version: Annotated[str | None, typer.Option("--version", help="Version.  [default: the newest]")] = None,
    as_json: Json = False,
    tracking: Tracking = None,
) -> None:
    """Point an alias of the registry at a version, once it loads and predicts.

    Example: orchestrator promote rec-ml-100k --to champion
    """
    settings = resolved(tracking=tracking)
    reachable(settings)
    from orchestrator import registry

    event = registry.promote(settings, model, to, version)
    before = f" (was version {event['before']})" if event["before"] else ""
    out(event, f"{model}@{to} is now version {event['version']}{before}", as_json)


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
    """Use what the registry holds; key=value are the model's own parameters, such as k=10.

    Example: orchestrator predict rec-ml-100k@champion --input users.csv --output top.parquet
    """
    from orchestrator.configuration import read_overrides

    given = read_overrides(params or [])
    settings = resolved(tracking=tracking)
    reachable(settings)
    from orchestrator import prediction

    prediction.predict(settings, model, source, target, given)
