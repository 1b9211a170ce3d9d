"""The verb ``clean``."""

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
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, metavar="DAYS", help="Only data unchanged for DAYS.")
    ] = 0.0,
    kept: Annotated[bool, typer.Option("--kept", help="Also the checkpoints that sweep --keep all keeps.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it.  [default: only show it]")] = False,
    as_json: Json = False,
    storage: Storage = None,
    tracking: Tracking = None,
) -> None:
    """Find and remove stale run data.

    That is: orphaned checkpoints, half-written files, runs left RUNNING in MLflow. Never what a resume needs.

    Exit 1 if something could not be removed; it is named.

    Example: orchestrator clean --older-than 30 --yes
    """
    from orchestrator.cli import prune

    settings = resolved(storage=storage, tracking=tracking)
    runs: list[prune.Stale] = []
    try:
        runs = prune.stale(settings)
    except UserError as error:  # the storage can be cleaned without MLflow
        print(f"MLflow's runs were not checked: {error}", file=sys.stderr)
    orphans = prune.orphans(settings, older_than=older_than, kept=kept)
    troubles: list[str] = []
    if yes:
        orphans, troubles = prune.remove(orphans)
        runs, more = prune.kill(settings, runs)
        troubles += more
    print(json.dumps(prune.as_json(orphans, runs, yes, troubles)) if as_json else prune.as_text(orphans, runs, yes))
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    if troubles:
        raise typer.Exit(FAILED)
