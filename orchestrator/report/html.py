"""Render sections as one self-contained HTML page without external resources, for use offline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.console import show

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = Path(__file__).with_name("templates") / "report.html"


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by a click on a column; ``marked`` is the index of a highlighted row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    marked: int | None = None

    @cached_property
    def numeric(self) -> list[bool]:
        """For each column, whether all its values are numbers."""
        columns = [[row[i] for row in self.rows if row[i] is not None] for i in range(len(self.columns))]
        return [bool(column) and all(_is_number(value) for value in column) for column in columns]


@dataclass(frozen=True)
class Plot:
    """A plot with its caption.

    ``svg`` is trusted markup, only from ``plot_style.svg``; everything else on a page is escaped. A ``wide`` plot has
    the width of the page.
    """

    svg: str
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """The content under one heading, in this order; empty parts are left out."""

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The page's HTML."""
    return _template().render(title=title, subtitle=subtitle, sections=sections)


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["show"] = show
    environment.filters["key"] = _sort_key
    return environment.from_string(TEMPLATE.read_text("utf-8"))


def _sort_key(value: Any) -> str:
    """The number that a cell shows, also as ``+0.1``, ``< 1e-10`` or ``0.1 to 0.2``. Empty for other cells."""
    try:
        number = float(value if _is_number(value) else str(value).lstrip("<> ").partition(" to ")[0])
    except ValueError:
        return ""
    return repr(number) if math.isfinite(number) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
