"""Convert the exception of a command to one sentence for the user and an exit code."""

from __future__ import annotations

import ast
import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import typer

from orchestrator.cluster.interrupts import Remembered
from orchestrator.console import Output
from orchestrator.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    UNAVAILABLE,
    USAGE,
    Interrupted,
    RunFailed,
    UserError,
    mask,
    missing_module,
    nearest,
    one_line,
    unknown,
)

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # typer contains its own copy of click

OF_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)
"""Errors of disks, rights and limits, which are no bug of this program."""

NO_PROCESS = (os.strerror(errno.EAGAIN), "can't start new thread")
"""Text of Python's error where no process, and where no thread can be started."""


def guarded(call: Callable[[], Any]) -> int:
    """Run a command and return its exit code; print an error to standard error."""
    with Remembered() as ctrl_c:
        try:
            code = int(call() or DONE)
            return _interrupted() if ctrl_c.pressed and code == INTERRUPTED else code  # typer converts it to a code
        except BaseException as error:
            if ctrl_c.pressed and not isinstance(error, Interrupted):  # a library may convert KeyboardInterrupt
                return _interrupted()
            return _ended(error)


def _ended(error: BaseException) -> int:
    """Print an error and return its exit code; raise it again if a traceback is requested."""
    match error:
        case typer.Exit():
            return error.exit_code
        case UserError():
            return _say(f"error: {error}", error.code)
        case Interrupted():
            return _say(str(error), INTERRUPTED)
        case RunFailed():
            return _say(f"failed: {error}", FAILED)
        case typer.Abort() | KeyboardInterrupt():
            return _interrupted()
        case USAGE_ERROR():
            return _say(_usage(error), USAGE)
        case SystemExit(__context__=BrokenPipeError()) | BrokenPipeError():  # from typer and rich, or from print
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has closed the pipe
            return DONE
        case OSError() if error.errno in OF_MACHINE:
            file = f": {error.filename}" if error.filename else ""
            return _say(f"failed: {error.strerror}{file}", FAILED)
        case BlockingIOError(strerror=text) | RuntimeError(args=(str() as text,)) if text in NO_PROCESS:
            fix = "End other processes, or raise their limit (ulimit -u, or that of the container)"
            return _say(f"failed: {UserError('No process or thread can be started', got=text, fix=fix)}", FAILED)
        case ModuleNotFoundError() if missing := missing_module(error, "This command", submit=_submittable()):
            return _say(f"error: {missing}", missing.code)
        case Exception() if "mlflow" in sys.modules and _is_outage(error):
            what = "MLflow, or the store of its artifacts, did not answer"
            return _ended(UserError(what, got=one_line(error), fix="Try again", code=UNAVAILABLE))
        case Exception() if not os.environ.get("ORCHESTRATOR_TRACEBACK"):
            where = "a bug of orchestrator; ORCHESTRATOR_TRACEBACK=1 shows where"
            return _say(f"failed: {type(error).__name__}: {one_line(error)} ({where})", FAILED)
    raise error


def _is_outage(error: Exception) -> bool:
    from orchestrator.registry import models  # loaded by whatever asked MLflow

    return models.is_outage(error)


def _interrupted() -> int:
    """The exit code of Ctrl-C; of a run or sweep that has not begun, print that there is nothing to resume."""
    records = sys.modules.get("orchestrator.storage.records")
    if sys.argv[1:2] not in (["run"], ["sweep"]) or (records and records.DRIVEN):
        return INTERRUPTED
    if any(word.partition("=")[0] == "--resume" for word in sys.argv):
        return _say(f"Interrupted before the {sys.argv[1]} was continued. It can still be resumed.", INTERRUPTED)
    return _say(f"Interrupted before the {sys.argv[1]} was recorded; there is nothing to resume.", INTERRUPTED)


def _submittable() -> bool:
    """Whether the verb of the command line can be submitted as a job."""
    from orchestrator.jobs.submission import VERBS

    return sys.argv[1:2] != [] and sys.argv[1] in VERBS


def _say(text: str, code: int) -> int:
    print(mask(text), file=Output(sys.stderr), flush=True)
    return code


def _usage(error: Any) -> str:
    """click's message in the form of UserError, with the nearest verb; without any arguments it is the help."""
    message = str(error.format_message())
    if message.startswith("Usage: "):
        return message
    if message.startswith("No such command"):
        verbs = error.ctx.command.list_commands(error.ctx)
        listed_by = f"{error.ctx.command_path} --help"
        quoted = re.search(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", message)  # as repr writes it
        verb = ast.literal_eval(quoted[0]) if quoted else message
        return f"error: {unknown('verb', verb, verbs, listed_by=listed_by)}"
    message = message.replace(": Value error, ", ": ").rstrip(".")
    option = str(getattr(error, "option_name", ""))
    names = [each.strip("-") for each in getattr(error, "possibilities", None) or ()]
    is_unknown = option.startswith("--") and message.startswith("No such option")
    if is_unknown:  # click quotes the option in some versions
        message = f"No such option: {option}" + message.partition(option)[2].removeprefix("'")
    verb = error.ctx.command.name if error.ctx and error.ctx.parent and not error.ctx.parent.parent else None
    if is_unknown and verb in ("run", "sweep") and not nearest(option[2:], names):
        from orchestrator.config.options import OPTIONS

        name = option[2:].replace("-", "_")
        other = next((one for one, options in OPTIONS.items() if name in options), None)
        hint = f"It is an option of {other}" if other else f"Parameters and keys of the plan are words: {name}=VALUE"
        message = f"No such option: {option}. {hint}"
    return f"error: {message}. See: {error.ctx.command_path if error.ctx else 'orchestrator'} --help"
