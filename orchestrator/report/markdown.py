"""Tables as Markdown and as CSV, with any text in their cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table without a final newline; bars and line breaks in cells are escaped."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A CSV without a final newline."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue().rstrip("\n")


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
