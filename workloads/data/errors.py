"""Errors about datasets, in one sentence: where, what, got, expected, fix."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """Error about a dataset; ``str(error)`` is the whole message.

    ``file`` and ``line`` (from 1, including the header) give the place, ``got`` and ``expected`` the difference,
    ``fix`` the remedy.
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
        """The same error with a fix, if it has none."""
        return self._with(self.what, self.fix or fix)

    def of(self, parameter: str) -> DataError:
        """The same error, about the dataset that a parameter names: ``probe_dataset=NAME``."""
        return self._with(f"{parameter}: {self.what}", self.fix)

    def _with(self, what: str, fix: str | None) -> DataError:
        return type(self)(what, file=self.file, line=self.line, got=self.got, expected=self.expected, fix=fix)


class DataUnreachable(DataError):
    """The official source of a dataset could not be reached, or the transfer was interrupted."""


class UnclearLayout(DataError):
    """The files at a path do not say which of them are the dataset."""


class CacheUnwritable(DataError):
    """The cache directory cannot be written."""


def line_error(what: str, file: Path, number: int, line: str | bytes, expected: str | None = None) -> DataError:
    """The error about a line of a file, which shows how the line begins."""
    return DataError(what, file=file, line=number, got=repr(line[:60]), expected=expected)
