"""Output of a running command: one line an event, a progress line on a terminal, a log file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import mask
from orchestrator.provenance import private_files

RATE_SECONDS = 1.0
"""Time before a throughput is shown."""


class Console:
    """Prints to standard output, or with ``json`` (machine-readable output) to standard error.

    On a terminal the last line shows progress, throughput and time left; elsewhere progress is printed as plain
    lines, at most one every ``every`` seconds.
    """

    def __init__(self, *, json: bool = False, every: float = 5.0) -> None:
        self._out: IO[str] = sys.stderr if json else sys.stdout
        self._live = self._out.isatty()
        self._every = every
        self._log: IO[str] | None = None
        self._shown = ""
        self._last = 0.0
        self._started = ("", 0.0, 0)

    def log_to(self, file: Path) -> None:
        """Also write every further line to ``file``."""
        self._log = private_files.open_file(file, "a", buffering=1)

    def say(self, text: str = "") -> None:
        self._wipe()
        text = mask(text)
        try:
            print(text, file=self._out, flush=True)
        except BrokenPipeError:  # the reader has closed the pipe: continue, the log has every line
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
        if self._log:
            with suppress(OSError):  # a full disk is reported elsewhere
                self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def begin(self, unit: str, done: int = 0) -> None:
        """Start the clock of the throughput for units of this name; ``done`` of them were done before."""
        self._started = (unit, time.monotonic(), done)

    def progress(self, done: int, total: int, unit: str, detail: str = "") -> None:
        """Show that ``done`` of ``total`` units are done.

        Without a call of :meth:`begin` the throughput counts from the first call, which is correct only for units that
        end one after the other.
        """
        now = time.monotonic()
        if unit != self._started[0] or done < self._started[2]:
            self.begin(unit, done)
        _, since, first = self._started
        rate = (done - first) / (now - since) if now - since >= RATE_SECONDS else 0.0
        left = f", {duration((total - done) / rate)} left" if rate and done < total else ""
        speed = f", {rate:.3g} {unit}s/s" if rate else ""
        text = f"{unit} {done}/{total}{speed}{left}{'  ' + detail if detail else ''}"
        if self._live:
            self._wipe()
            self._shown = text
            self._out.write(text)
            self._out.flush()
        if now - self._last < self._every and done != total:
            return
        self._last = now
        if not self._live:
            self.say(text)
        elif self._log:  # the log may be followed in another terminal
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Print a table; columns of numbers are aligned to the right."""
        from rich.console import Console as Rich
        from rich.markup import escape
        from rich.table import Table

        self._wipe()
        table = Table(title=title, title_justify="left", header_style="bold")
        numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
        for name, right in zip(columns, numeric):
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(show(value)) for value in row))
        Rich(file=self._out, width=None if self._live else 120).print(table)
        if self._log:
            Rich(file=self._log, width=160).print(table)

    def _wipe(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[2K")
            self._shown = ""


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align cells in columns two blanks apart, without borders, so that grep and cut work."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def show(value: Any) -> str:
    """A value for a table cell."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 05 s``, ``2 h 07 min``."""
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
