"""Shared by the verbs: settings from flags, commands from functions, output of results."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from orchestrator import api
from orchestrator.config.options import Given, Json, Words, options_of
from orchestrator.console import Console, json_line
from orchestrator.errors import UserError, mask

if TYPE_CHECKING:
    from orchestrator.config.spec import ExperimentSpec, SweepSpec
    from orchestrator.runs.session import Result
    from orchestrator.storage.settings import Settings


@dataclass(frozen=True)
class Planning:
    """Set while ``orchestrator plan`` runs another verb, which then prints an estimate and starts nothing."""

    probe: bool
    as_json: bool
    slurm: int | None = None
    """GPUs of a Slurm node, if options of sbatch are to be printed."""


PLANNING: ContextVar[Planning | None] = ContextVar("planning", default=None)


def show_plan(spec: ExperimentSpec | SweepSpec, settings: Settings, local: bool) -> None:
    """Print the estimate and end the verb if it runs below ``orchestrator plan``."""
    if planning := PLANNING.get():
        from orchestrator.sweeps import estimate

        estimate.show(spec, settings, local=local, probe=planning.probe, as_json=planning.as_json, slurm=planning.slurm)
        raise typer.Exit


def resolved(**flags: str | None) -> Settings:
    """The settings, with the flags of the command line. Raises UserError for a password in a flag."""
    from orchestrator.storage.settings import NAMES, resolve

    for name, value in flags.items():
        if value and mask(value) != value:
            raise UserError(
                f"--{name.replace('_', '-')} contains a password, which everyone on this machine can read",
                fix=f"Set {NAMES[name][0]} instead",
            )
    return resolve(flags)


def reachable(**flags: str | None) -> Settings:
    """The same settings. Raises UserError where the tracking server does not answer."""
    from orchestrator.cluster import preflight

    settings = resolved(**flags)
    preflight.tracking(settings)
    return settings


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """``[WORKLOAD] key=value ...`` -> (workload, pairs)."""
    words = list(words or [])
    workload = words.pop(0) if words and "=" not in words[0] else None
    return workload, words


def command_of(call: Callable[..., Any]) -> Callable[[Callable[[Given, Any, Any], None]], Callable[..., None]]:
    """Decorator that gives a command the options of ``call``.

    The function gets the options by name, the words, and whether JSON is requested.
    """
    parameters = [inspect.Parameter("words", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Words)]
    for name, option in options_of(call).items():
        kind, info = get_args(option.annotation)
        annotated: Any = Annotated[_read_as(kind), info]
        parameters.append(option.replace(annotation=annotated, default=api.OF_COMMANDS.get(name, option.default)))
    json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    signature = inspect.Signature([*parameters, json_option])

    def decorate(command: Callable[[Given, Any, Any], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def typed(**values: Any) -> None:
            words = values.pop("words")
            as_json = values.pop("as_json")
            _check_working_directory()
            command(values, words, as_json)

        del typed.__wrapped__  # Typer would read the signature of the wrapped function
        typed.__signature__ = signature  # type: ignore[attr-defined]
        typed.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
        return typed

    return decorate


def _check_working_directory() -> None:
    """Raise UserError if the working directory was removed: neither relative paths nor PyTorch work in it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("The working directory was removed", fix="Change to another one") from None


def _read_as(kind: Any) -> Any:
    """The type that Typer parses an option as; for an option with several types a string or a path."""
    if get_origin(kind) is Sequence:
        return list[str] | None
    kinds = [one for one in get_args(kind) if one is not NoneType]
    if len(kinds) < 2:
        return kind
    return Path | None if Path in kinds else str | None


def show_result(result: Result, as_json: bool) -> None:
    from orchestrator.storage import records
    from orchestrator.storage.remote import location_of

    if as_json:
        print(json_line({**result.to_json(), "folder": str(result.folder)}), flush=True)
    else:
        console = Console()
        console.say(f"Model: {result.model_uri}")
        stored = location_of(result.folder)
        console.say(f"Results: {result.folder}" + (f", stored at {stored.uri}" if stored else ""))
        version = result.extra.get("registered_version")
        if result.run_id or version:  # neither with tracking off
            console.say("Next:")
            console.say("  orchestrator ui                      # the runs, in MLflow")
        if version:  # the model's name is in the record
            record = records.open_folder(result.folder).record
            name = record["spec"]["options"]["register"]
            console.say(f"  orchestrator promote {shlex.quote(name)} --to champion{_tracking_option(record)}")
    raise typer.Exit(result.exit_code)


def finish(report: Any, code: int, as_json: bool) -> None:
    """Print the report as JSON if that is requested, and exit with the code."""
    if as_json:
        print(json_line(report), flush=True)
    raise typer.Exit(code)


def _tracking_option(record: Mapping[str, Any]) -> str:
    """The option of a run's tracking store, as far as it differs from the one here; a password is left to the user."""
    there = record.get("tracking")
    differs = there and "***" not in there and there != resolved().recorded()["tracking"]
    return f" --tracking {shlex.quote(there)}" if there and differs else ""


def write(text: str, file: Path | None) -> None:
    """Write to ``file``, or to standard output. Raises UserError if the file cannot be written."""
    if file is None:
        print(text)
        return
    try:
        file.write_text(f"{text}\n", "utf-8", "backslashreplace")
    except OSError as error:
        raise UserError(f"{file} cannot be written", got=error.strerror, fix="Choose another --output") from None


def out(value: Any, text: str, as_json: bool) -> None:
    print(json_line(value) if as_json else text)
