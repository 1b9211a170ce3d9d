"""The verb about what is stored: clean."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from orchestrator.cli.common import resolved
from orchestrator.config.options import Json, Storage, Tracking
from orchestrator.errors import FAILED, UserError

app = typer.Typer()


@app.command()
def clean(
    older_than: Annotated[float, typer.Option("--older-than", min=0, metavar="DAYS", help="Only what is older.")] = 0.0,
    kept: Annotated[bool, typer.Option("--kept", help="Also what sweep --keep all was to keep.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without, it is only shown.")] = False,
    as_json: Json = False,
    storage: Storage = None,
    tracking: Tracking = None,
) -> None:
    """Show, then remove what no one needs.

    That is: orphaned checkpoints, half-written files, runs left RUNNING in MLflow.

    Exit 1 when something could not be removed; it is named, and the rest is.

    Example: orchestrator clean --older-than 30 --yes
    """
    from orchestrator.cli import prune

    settings = resolved(storage=storage, tracking=tracking)
    runs: list[prune.Stale] = []
    try:
        runs = prune.stale(settings)
    except UserError as error:  # the storage can be cleaned without
        print(f"MLflow's runs were not looked at: {error}", file=sys.stderr)
    found = prune.orphans(settings, older_than=older_than, kept=kept)
    troubles: list[str] = []
    if yes:
        found, troubles = prune.remove(found)
        runs, more = prune.kill(settings, runs)
        troubles += more
    told = prune.as_json(found, runs, yes, troubles)
    print(json.dumps(told) if as_json else prune.as_text(found, runs, yes))
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    if troubles:
        raise typer.Exit(FAILED)
