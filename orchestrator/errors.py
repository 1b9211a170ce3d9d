"""The errors a user meets: one sentence each, with an exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

DONE, FAILED, USAGE, UNAVAILABLE, PARTIAL, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


QUERY = re.compile(r"(?i)([?&](?:[\w.-]*(?:password|passwd|token|secret|signature|credential)|sig)=)[^&\s\"'<>]+")
"""A secret in an address's query: S3, GCS and Azure put the right to one object there."""


class UserError(Exception):
    """Something the user can mend: what is wrong, what was got, what is allowed, what to do.

    ``code`` is the exit code: USAGE for arguments, configuration, data and checkpoints; UNAVAILABLE when the
    cluster, the tracking server or the storage cannot do it; REFUSED when a gate said no.
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
        self.what, self.got, self.allowed, self.fix, self.code = what, got, allowed, fix, code
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

    def __reduce__(self) -> tuple[object, ...]:  # it crosses process borders inside Ray
        return (_rebuild, (type(self), str(self), vars(self)))


def _rebuild(cls: type[UserError], text: str, fields: Mapping[str, object]) -> UserError:
    error = cls.__new__(cls, text)  # a subclass may be made of other things
    vars(error).update(fields)
    return error


class RunFailed(Exception):
    """A run or trial failed while running: which, why, and where its log lies."""

    code = FAILED

    def __init__(self, trial: str, cause: str, log: str | None = None) -> None:
        self.trial, self.cause, self.log = trial, mask(cause), log
        super().__init__(f"{trial} failed: {self.cause}" + (f" (log: {log})" if log else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return (RunFailed, (self.trial, self.cause, self.log))


class Interrupted(Exception):
    """Ctrl-C, after a clean stop: the state is saved and ``resume`` is the command that goes on."""

    code = INTERRUPTED

    def __init__(self, resume: str) -> None:
        self.resume = resume
        super().__init__(f"Interrupted; everything finished is kept. Go on with: {resume}")


def one_line(error: BaseException) -> str:
    """What any error says, as one line: the first it has; of a failed validation all that was found.

    Whatever tells an error to somebody else (another process, a run's tag, a sentence for the user) tells this.
    """
    from pydantic import ValidationError

    if isinstance(error, ValidationError):  # its first line only counts
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    lines = (line.strip() for line in str(error).splitlines())
    return mask(next((line for line in lines if line), "no message"))


def mask(text: str) -> str:
    """The text with the passwords and tokens of every address in it hidden: a library's message may hold one."""
    text = re.sub(r"://([^/\s:@]*):(?!\d+/)\S{0,300}@", r"://\1:***@", text)
    text = re.sub(r"://(?!git@)[^/\s:@]+@", "://***@", text)
    return QUERY.sub(r"\1***", text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.55)
    return matches[0] if matches else None


def unknown(kind: str, name: str, known: Iterable[str], cls: type[UserError] = UserError) -> UserError:
    """The error for a name that is not known, with the nearest match offered."""
    names = sorted(known)
    close = nearest(name, names)
    return cls(
        f"Unknown {kind}",
        got=repr(name),
        allowed=names or "none is known",
        fix=f"Did you mean {close!r}?" if close else None,
    )


def goes_on(resume: str, given: Iterable[str]) -> UserError:
    """The error for what stands beside ``resume`` and cannot be asked again."""
    return UserError(
        f"{resume} goes on with what was asked for, so nothing else can be asked", got=" ".join(given),
        fix=f"Keep only {resume}",
    )  # fmt: skip


def _list(allowed: object) -> str:
    if isinstance(allowed, str):
        return allowed
    if isinstance(allowed, Iterable):
        return ", ".join(str(item) for item in allowed)
    return str(allowed)
