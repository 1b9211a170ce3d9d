"""Tables as Markdown and as CSV, whatever stands in their cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """The lines of a table, without a newline at its end; neither a bar nor a line break in a cell ends the cell."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """The lines of a CSV, without a newline at its end."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue().rstrip("\n")


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
