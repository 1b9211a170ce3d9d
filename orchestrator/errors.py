"""Errors that are shown to the user, each with one sentence and an exit code."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from os import PathLike

DONE, FAILED, USAGE, UNAVAILABLE, PARTIAL, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


_SECRET = r"password|passwd|token|secret|signature|credential|(?:api|access|auth)[_-]?key"
QUERY = re.compile(rf"(?i)([?&](?:[\w.-]*(?:{_SECRET})|sig|key|odbc_connect)=)[^&\s\"'<>]+")
"""A secret in the query of an address, as in signed addresses of S3, GCS and Azure, and a whole ODBC connection."""

ODBC = re.compile(r"(?i)(;\s*(?:pwd|password)=)[^;&\s\"']+")
"""The password in the text of an ODBC connection."""


class UserError(Exception):
    """An error that the user can fix: what is wrong, the value given, what is allowed, how to fix it.

    ``code`` is the exit code: USAGE for arguments, configuration, data and checkpoints; UNAVAILABLE when the cluster,
    the tracking server or the storage is unavailable; REFUSED when a gate refused.
    """

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        allowed: object = None,
        fix: str | None = None,
        code: int = USAGE,
    ) -> None:
        self.what = what
        self.got = got
        self.allowed = allowed
        self.fix = fix
        self.code = code
        text = what.rstrip(".")
        if got is not None:
            text += f": got {got}"
        if allowed is not None:
            text += f"; allowed: {_list(allowed)}"
        if not text.endswith("?"):
            text += "."
        if fix is not None:
            text += f" {fix}" if fix.endswith(("?", ".")) else f" {fix}."
        super().__init__(mask(text))

    def __reduce__(self) -> tuple[object, ...]:  # Ray pickles it between processes
        return (_rebuild, (type(self), str(self), vars(self)))


def _rebuild(cls: type[UserError], text: str, fields: Mapping[str, object]) -> UserError:
    error = cls.__new__(cls, text)  # the constructor of a subclass may take other arguments
    vars(error).update(fields)
    return error


TRAINING_MODULES = frozenset(
    {
        *("torch", "torchvision", "transformers", "tokenizers", "numba", "matplotlib", "cmaes", "scipy"),
        *("PIL", "bm25s", "Stemmer"),
    }
)
"""Modules that only an installation with the extra ``train`` has."""


def restore_experiment(number: str) -> str:
    """What to do about a deleted experiment of MLflow."""
    return f"Restore it with: mlflow experiments restore --experiment-id {number}"


def missing_module(error: ModuleNotFoundError, what: str, *, submit: bool) -> UserError | None:
    """What to do if ``error`` is the lack of a module of the extra ``train``, else None. See :func:`of_client`."""
    name = (error.name or "").partition(".")[0]
    if name not in TRAINING_MODULES or importlib.util.find_spec(name):
        return None
    return of_client(f"{what} needs {name}", submit=submit)


def of_client(what: str, *, submit: bool) -> UserError:
    """The error that ``what`` is not installed with the client. ``submit``: whether it can be run as a job instead."""
    install = "install ray-experiment-orchestrator[train]"
    return UserError(
        f"{what}, which is not installed here: this is the client",
        fix=f"Run it on the cluster (orchestrator submit -- ...) or {install}" if submit else install.capitalize(),
        code=UNAVAILABLE,
    )


class RunFailed(Exception):
    """A run or trial failed while running: which one, why, and the path of its log."""

    code = FAILED

    def __init__(self, trial: str, cause: str, log: str | None = None) -> None:
        self.trial = trial
        self.cause = mask(cause)
        self.log = log
        super().__init__(f"{trial} failed: {self.cause}" + (f" (log: {log})" if log else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return (RunFailed, (self.trial, self.cause, self.log))


class Interrupted(Exception):
    """Ctrl-C, after a clean stop: the state is saved, and ``resume`` is the command that continues."""

    code = INTERRUPTED

    def __init__(self, resume: str) -> None:
        self.resume = resume
        super().__init__(f"Interrupted. Finished epochs and trials are saved. Continue with: {resume}")

    def __reduce__(self) -> tuple[object, ...]:
        return (Interrupted, (self.resume,))


def one_line(error: BaseException) -> str:
    """The message of any error as one line: its first line; for a failed validation all problems.

    Used wherever an error is reported: to another process, in a tag of a run, to the user.
    """
    from pydantic import ValidationError

    if isinstance(error, ValidationError):  # its first line is only the number of problems
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    try:
        text = str(error)
    except Exception as failure:  # of a user's class
        return f"no message, its __str__ raises {type(failure).__name__}"
    lines = (line.strip() for line in text.splitlines())
    return mask(next((line for line in lines if line), "no message"))


def short_repr(value: object) -> str:
    """The ``repr`` of a value in one line; of an object, such as a table or a result of a notebook, its beginning."""
    if isinstance(value, str):
        return repr(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def plural(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``, ``0 trials``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def check_text(what: str, value: object) -> None:
    """Raise UserError if text in ``value``, also in a collection, is not UTF-8: MLflow and the pages need it.

    Python decodes such bytes of a command line or a path to lone surrogates.
    """
    match value:
        case str() | PathLike():
            try:
                str(value).encode()
            except UnicodeEncodeError:
                raise UserError(f"{what} is not UTF-8", got=repr(str(value)), fix="Write it in UTF-8") from None
        case Mapping():
            check_text(what, [*value.keys(), *value.values()])
        case list() | tuple() | set():
            for each in value:
                check_text(what, each)


def mask(text: str) -> str:
    """Hide the passwords and tokens in all addresses of a text, such as the message of a library."""
    text = re.sub(r"://([^/\s:@]*):(?!\d+/)\S{0,300}@", r"://\1:***@", text)
    text = re.sub(r"://(?!git@)[^/\s:@]+@", "://***@", text)
    return ODBC.sub(r"\1***", QUERY.sub(r"\1***", text))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of ``names``, or None if none is close."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.55)
    return matches[0] if matches else None


LONGEST = 100
"""Number of characters up to which an object is shown whole."""

SHORT = 12
"""Number of names up to which all are listed next to the nearest one."""


def unknown(
    kind: str, name: str, names: Iterable[str], cls: type[UserError] = UserError, *, listed_by: str | None = None
) -> UserError:
    """The error for a name that is not one of ``names``, with the nearest one as a suggestion.

    Many names are listed only where none is near. ``listed_by`` is the command that lists them.
    """
    allowed = sorted(names)
    close = nearest(name, allowed)
    in_short = close is not None and len(allowed) > SHORT
    fix = f"Did you mean {close!r}?" if close else None
    if in_short and listed_by:
        fix = f"{fix} All: {listed_by}"
    return cls(
        f"Unknown {kind}", got=repr(name), allowed=None if in_short else allowed or "none is known", fix=fix
    )  # fmt: skip


def resume_conflict(resume: str, given: Iterable[str], allowed: str) -> UserError:
    """The error for options that cannot be given with ``resume``, which goes with those that ``allowed`` names."""
    what = f"{resume} continues with the recorded options"
    return UserError(what, got=" ".join(given), fix=f"It takes only {allowed}")


def _list(allowed: object) -> str:
    if isinstance(allowed, str):
        return allowed
    if isinstance(allowed, Iterable):
        return ", ".join(str(item) for item in allowed)
    return str(allowed)
