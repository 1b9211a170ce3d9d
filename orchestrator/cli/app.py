"""The command ``orchestrator`` with all verbs, and its entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer

from orchestrator.cli import models, reproduction, results, services, storage, training
from orchestrator.cli.exit_codes import guarded
from orchestrator.errors import UserError, check_text

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
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("ray-experiment-orchestrator")
        except PackageNotFoundError:
            what = "The version is unknown: ray-experiment-orchestrator is not installed, only on Python's path"
            raise UserError(what, fix="Install it: pip install .") from None
        print(f"orchestrator {number}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options without a verb."""


@cache
def _command() -> Callable[..., Any]:
    return typer.main.get_command(app)  # a tenth of a second


def run(words: Sequence[str] | None = None) -> int:
    """Run a verb (default: the command line of this process), print an error as one sentence, return the exit code."""

    def verb() -> Any:
        check_text("A word of the command line", list(sys.argv[1:] if words is None else words))
        return _command()(words, standalone_mode=False)

    return guarded(verb)


def main() -> None:
    """Entry point: run a verb and exit with its code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by a daemon
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        getattr(sys, name).reconfigure(errors="backslashreplace")  # for a locale without all characters
    code = run()
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"):  # Ray has no exit codes: write it to the job's log
        from orchestrator.jobs.job_state import EXIT_RECORD

        print(f"{EXIT_RECORD}{code}", flush=True)
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
