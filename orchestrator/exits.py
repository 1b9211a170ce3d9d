"""How a command ends: every error a user can meet becomes one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from orchestrator.errors import DONE, FAILED, INTERRUPTED, USAGE, Interrupted, RunFailed, UserError, unknown

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # typer brings its own copy of click along


def guarded(call: Callable[[], Any]) -> int:
    """Run a command; print what went wrong on standard error and return the exit code."""
    try:
        return int(call() or DONE)
    except typer.Exit as error:
        return error.exit_code
    except UserError as error:
        return _say(f"error: {error}", error.code)
    except Interrupted as error:
        return _say(str(error), INTERRUPTED)
    except RunFailed as error:
        return _say(f"failed: {error}", FAILED)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except USAGE_ERROR as error:
        return _say(f"error: {_usage(error)}", USAGE)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if os.environ.get("ORCHESTRATOR_TRACEBACK"):
            raise
        where = "a fault of ours; ORCHESTRATOR_TRACEBACK=1 shows where"
        return _say(f"failed: {type(error).__name__}: {error} ({where})", FAILED)


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _usage(error: Any) -> str:
    """click's message as ours: the nearest verb is offered."""
    message = str(error.format_message())
    if message.startswith("No such command"):
        return str(unknown("verb", message.split("'")[1], error.ctx.command.list_commands(error.ctx)))
    return f"{message.rstrip('.')}. See: {error.ctx.command_path if error.ctx else 'orchestrator'} --help"
