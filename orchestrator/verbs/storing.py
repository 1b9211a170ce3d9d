"""The verb about what is stored: clean."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from orchestrator.errors import UserError
from orchestrator.options import Json, Storage, Tracking
from orchestrator.verbs.common import resolved

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
    """Show, then remove what nobody needs: orphaned checkpoints, half-written files, runs left RUNNING in MLflow.

    Example: orchestrator clean --older-than 30 --yes
    """
    from orchestrator import cleaning

    settings = resolved(storage=storage, tracking=tracking)
    runs: list[cleaning.Stale] = []
    try:
        runs = cleaning.stale(settings)
    except UserError as error:  # the storage can be cleaned without
        print(f"MLflow's runs were not looked at: {error}", file=sys.stderr)
    found = cleaning.orphans(settings, older_than=older_than, kept=kept)
    if yes:
        found = [orphan for orphan in found if cleaning.remove(orphan)]
        cleaning.kill(settings, runs)
    print(json.dumps(cleaning.as_json(found, runs, yes)) if as_json else cleaning.as_text(found, runs, yes))
