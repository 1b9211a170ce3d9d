"""What is wrong with a dataset, in one sentence: where, what, got, expected, what to do."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """Data that is unknown, missing or damaged; ``str(error)`` is the whole message for the user.

    ``file`` and ``line`` (from 1, the header is line 1) say where, ``got`` and ``expected`` what differs and
    ``fix`` what to do about it.
    """

    def __init__(
        self,
        what: str,
        *,
        file: Path | None = None,
        line: int | None = None,
        got: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.file = file
        self.line = line
        self.got = got
        self.expected = expected
        self.fix = fix
        text = "" if file is None else f"{file}: " if line is None else f"{file}, line {line}: "
        text += what
        if got is not None:
            text += f": got {got}"
        if expected is not None:
            text += f"; expected {expected}"
        if fix is not None:
            text += f". {fix}"
        super().__init__(text if text.endswith((".", "?")) else f"{text}.")

    def advise(self, fix: str) -> DataError:
        """The same fault with what to do about it."""
        return type(self)(self.what, file=self.file, line=self.line, got=self.got, expected=self.expected, fix=fix)


class DataUnreachable(DataError):
    """The official source of a dataset could not be reached, or broke off."""


class CacheUnwritable(DataError):
    """The cache directory cannot be written."""
