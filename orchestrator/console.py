"""Output of a running command: one line an event, a live view on a terminal, a log file."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from orchestrator.errors import mask
from orchestrator.provenance import private_files

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

RATE_SECONDS = 1.0
"""Time before a throughput is shown."""

PER_HOUR_BELOW = 0.01
"""Throughput, per second, below which it is shown per hour."""

FRAMES_PER_SECOND = 4


class Output:
    """A stream that drops what cannot be written: after its terminal or pipe was closed, or its disk is full."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # the command goes on: the log has every line
            with suppress(OSError), open(os.devnull, "w") as null:
                os.dup2(null.fileno(), self._stream.fileno())


class Console:
    """Prints to standard output, or with ``json`` (machine-readable output) to standard error.

    On a terminal the last lines show a live view (see :meth:`view`). Elsewhere progress is printed as plain lines, at
    most one every ``every`` seconds.
    """

    def __init__(self, *, json: bool = False, every: float = 5.0) -> None:
        stream = sys.stderr if json else sys.stdout
        self._out = cast(IO[str], Output(stream or io.StringIO()))  # none: a notebook has silenced it
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._every = every
        self._log: IO[str] | None = None
        self._live: Live | None = None
        self._draw: Callable[[], RenderableType] = str
        self._last = 0.0
        self._started = ("", 0.0, 0)

    def log_to(self, file: Path) -> None:
        """Also write every further line to ``file``."""
        self._log = private_files.open_file(file, "a", buffering=1)

    def say(self, text: str = "") -> None:
        text = mask(text)
        if self._live:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._out, flush=True)
        self._write_log(text)

    def event(self, text: str) -> None:
        """Print a line, but only to the log while a live view shows the same."""
        if self._live:
            self._write_log(mask(text))
        else:
            self.say(text)

    def view(self, draw: Callable[[], RenderableType]) -> None:
        """Show what ``draw`` returns below the printed lines, four times a second, until :meth:`end_view`.

        ``draw`` is called in another thread and replaces the previous one. Does nothing without a terminal.
        """
        if not self._terminal:
            return
        self._draw = draw
        if self._live is None:
            from rich.console import Console as Rich
            from rich.live import Live

            self._live = Live(
                console=Rich(file=self._out),
                get_renderable=self._drawn,
                refresh_per_second=FRAMES_PER_SECOND,
                transient=True,
            )
            self._live.start()

    def end_view(self) -> None:
        live = self._live
        self._live = None
        if live:
            live.stop()

    def show_cursor(self) -> None:
        """Show the terminal's cursor again, which the live view hides. For the end of a process without cleanup."""
        if self._live:
            with suppress(OSError):
                os.write(self._out.fileno(), b"\x1b[?25h\n")

    def _drawn(self) -> RenderableType:
        from rich.padding import Padding

        try:
            return Padding(self._draw(), (0, 3, 0, 0))  # a full line would wrap when the terminal echoes ^C
        except Exception:  # it reads what other threads change: the next frame is a quarter of a second away
            return ""

    def _write_log(self, text: str) -> None:
        if self._log:
            with suppress(OSError):  # a full disk is reported elsewhere
                self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def begin(self, noun: str, done: int = 0) -> None:
        """Start the clock of the throughput for units of this name; ``done`` of them were done before."""
        self._started = (noun, time.monotonic(), done)

    def progress(
        self,
        done: int,
        total: int,
        noun: str,
        detail: str | Callable[[], str] = "",
        seconds_left: float | None = None,
    ) -> None:
        """Print that ``done`` of ``total`` units are done. With a live view only the log gets the line.

        Without a call of :meth:`begin` the throughput counts from the first call, which is correct only for units that
        end one after the other. Without ``seconds_left`` the time left is estimated from the throughput.
        """
        now = time.monotonic()
        if noun != self._started[0] or done < self._started[2]:
            self.begin(noun, done)
        if now - self._last < self._every and done != total:
            return
        self._last = now
        _, since, first = self._started
        rate = (done - first) / (now - since) if now - since >= RATE_SECONDS else 0.0
        if seconds_left is None and rate:
            seconds_left = (total - done) / rate
        left = f", {duration(seconds_left)} left" if seconds_left is not None and done < total else ""
        per, seconds = ("s", 1) if rate >= PER_HOUR_BELOW else ("h", 3600)
        speed = f", {rate * seconds:.3g} {noun}s/{per}" if rate else ""
        detail = detail if isinstance(detail, str) else detail()
        text = f"{noun} {done}/{total}{speed}{left}{'  ' + detail if detail else ''}"
        self.event(text)

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Print a table; columns of numbers are aligned to the right."""
        from rich.console import Console as Rich
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=title, title_justify="left", header_style="bold")
        numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
        for name, right in zip(columns, numeric):
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(show(value)) for value in row))
        if self._live:
            self._live.console.print(table)
        else:
            drawn = io.StringIO()  # Rich itself would end the process where the reader has closed the pipe
            width = None if self._terminal else 120
            # In a notebook Rich would display the table and leave the file empty.
            Rich(file=drawn, width=width, force_terminal=self._terminal, force_jupyter=False).print(table, end="")
            print(drawn.getvalue().removesuffix("\n"), file=self._out, flush=True)
        if self._log:
            with suppress(OSError):
                Rich(file=self._log, width=160, force_jupyter=False).print(table)


def json_line(value: Any) -> str:
    """A value as one line of JSON for ``--json``. NaN and infinity, which JSON does not have, become null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_with_nulls(value))


def _with_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_nulls(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align cells in columns two blanks apart, without borders, so that grep and cut work."""
    from rich.cells import cell_len  # of a Chinese character 2

    widths = [max(map(cell_len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths)).rstrip() for line in lines
    )


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
