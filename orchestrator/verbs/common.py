"""What the verbs share: settings from flags, words apart, results shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.session import Result
    from orchestrator.settings import Settings


def resolved(**flags: str | None) -> Settings:
    from orchestrator.settings import resolve

    return resolve(flags)


def reachable(settings: Settings) -> None:
    from orchestrator import preflight

    preflight.tracking(settings)


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """``[WORKLOAD] key=value ...`` -> (workload, pairs)."""
    words = list(words or [])
    workload = words.pop(0) if words and "=" not in words[0] else None
    return workload, words


def alone(flag: str, words: list[str] | None, **options: Any) -> None:
    named = (name for name, value in options.items() if value is not None and value is not False)
    if given := [*(words or []), *(f"--{name.replace('_', '-')}" for name in named)]:
        raise UserError(
            f"{flag} goes on with what was asked for, so nothing else can be asked", got=" ".join(given),
            fix=f"Keep only {flag}",
        )  # fmt: skip


def show_result(result: Result, as_json: bool, register: str | None) -> None:
    from orchestrator.console import Console

    if as_json:
        print(json.dumps(result.to_json()), flush=True)
    else:
        console = Console()
        console.say(f"Model: {result.model_uri}")
        console.say(f"Results: {result.folder}")
        console.say("Next:")
        console.say("  orchestrator ui                      # the runs, in MLflow")
        if register:
            console.say(f"  orchestrator promote {register} --to champion")
    raise typer.Exit(result.exit_code)


def out(value: Any, text: str, as_json: bool) -> None:
    print(json.dumps(value) if as_json else text)
