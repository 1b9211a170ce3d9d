"""The verb ``clean``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import out, resolved
from orchestrator.config.options import Json, Storage, Tracking
from orchestrator.console import json_line
from orchestrator.errors import FAILED, UserError, plural

if TYPE_CHECKING:
    from orchestrator.storage.settings import Settings

app = typer.Typer()

KEPT_VERSIONS = 5


@app.command()
def clean(
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, metavar="DAYS", help="Only data unchanged for DAYS.")
    ] = 0.0,
    kept: Annotated[bool, typer.Option("--kept", help="Also the checkpoints that sweep --keep all keeps.")] = False,
    models: Annotated[
        bool, typer.Option("--models", help="Instead: models in MLflow that nothing needs any more.")
    ] = False,
    keep_versions: Annotated[
        int | None, typer.Option("--keep-versions", min=1, help="With --models: newest versions to keep.  [default: 5]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it.  [default: only show it]")] = False,
    as_json: Json = False,
    storage: Storage = None,
    tracking: Tracking = None,
) -> None:
    """Find and remove stale run data.

    That is: orphaned checkpoints, half-written files, runs left RUNNING in MLflow. Never what a resume needs.
    With --models, models: neither those of an alias, nor the newest, winners, or what a record starts from.

    Exit 1 if something could not be removed; it is named.

    Example: orchestrator clean --older-than 30 --yes
    """
    from orchestrator.cli import prune

    settings = resolved(storage=storage, tracking=tracking)
    if not models and keep_versions is not None:
        raise UserError("--keep-versions is about models", fix="Add --models")
    if models:
        if older_than or kept:
            raise UserError("--models removes models alone", got="--older-than" if older_than else "--kept")
        clean_models(settings, keep_versions or KEPT_VERSIONS, yes, as_json)
        return
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
    out(prune.as_json(orphans, runs, yes, troubles), prune.as_text(orphans, runs, yes), as_json)
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    if troubles:
        raise typer.Exit(FAILED)


def clean_models(settings: Settings, keep: int, yes: bool, as_json: bool) -> None:
    """Show the models that can be removed and why others stay; with ``yes`` remove them."""
    from orchestrator.cluster import preflight
    from orchestrator.promotion import retention

    preflight.tracking(settings)
    survey = retention.survey(settings, keep)
    removable = list(survey.removable)
    troubles: list[str] = []
    freed = None
    if yes and removable:
        removable, troubles = retention.remove(settings, removable)
        freed = retention.free(settings, removable) if removable else None
    if as_json:
        output = {"removed": yes, "models": [asdict(one) for one in removable], "kept": dict(survey.kept)}
        print(json_line(output | {"freed": freed, "troubles": troubles}))
    else:
        for model in removable:
            print(model)
        kept = ", ".join(f"{count} {reason}" for reason, count in sorted(survey.kept.items()))
        end = "removed" if yes else "can be removed. Nothing is removed yet: add --yes"
        print(f"{plural(len(removable), 'model')} {end if removable else 'to remove'}")
        print(f"Kept: {kept or 'no model'}")
        if freed:
            print(freed)
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    if troubles:
        raise typer.Exit(FAILED)
