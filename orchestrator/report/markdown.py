"""Markdown tables, whatever stands in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """The lines of a table, without a newline at its end; neither a bar nor a line break in a cell ends the cell."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
