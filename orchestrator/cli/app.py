"""The command ``orchestrator`` with all verbs, and its entry point."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from orchestrator.cli import models, reproduction, results, services, storage, training
from orchestrator.cli.exit_codes import guarded

app = typer.Typer(
    name="orchestrator",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Experiments from an idea to a registered model: Ray Train and Tune, Optuna, MLflow.",
    epilog="Example: orchestrator run recommender dataset=ml-100k backbone=lightgcn epochs=50",
)
for group in (training, models, results, reproduction, storage, services):
    app.add_typer(group.app)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"orchestrator {version('ray-experiment-orchestrator')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options without a verb."""


def main() -> None:
    """Entry point: run a verb, print an error as one sentence, exit with its code."""
    code = guarded(lambda: app(standalone_mode=False))
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"):  # Ray has no exit codes: write it to the job's log
        from orchestrator.jobs.job_state import EXIT_RECORD

        print(f"{EXIT_RECORD}{code}", flush=True)
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
