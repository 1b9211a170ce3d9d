"""The style of all plots, and figures as SVG or PNG.

Figures are drawn without pyplot, so without global state. The colours are safe for colour-blind readers and visible on
light and dark backgrounds. In an SVG, text has the page's text colour.
"""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK, PAPER, GREY = "#1f2429", "#fefefe", "#8b949e"
BLUE, ORANGE = "#3987c8", "#dd7a00"

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "text.parse_math": False,  # names and values may contain dollar signs
}
WIDTH = 5.6  # inches; half of a report's page, all of a phone's

styled = matplotlib.rc_context(STYLE)
"""Decorator of a drawing function that applies this style."""


def canvas(height: float) -> tuple[Figure, Any]:
    """A figure of the given height in inches, and its axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.add_subplot()


def svg(figure: Figure, title: str) -> str:
    """The figure as an inline ``<svg>`` with the page's font and text colour and the label ``title``."""
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": title}):
        _save(figure, stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="(?:figure|axes|patch|line2d|text|matplotlib\.axis|legend|LineCollection|xtick|ytick)_\d+"', "",
                  text)  # fmt: skip
    text = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", text, count=2)
    width, _ = figure.get_size_inches()
    style = f'style="width:100%;max-width:{width * 96:.0f}px" role="img" aria-label="{escape(title)}"'
    return re.sub(r"\n\s*\n", "\n", text.replace("<svg", f"<svg {style}", 1))


def png(figure: Figure, file: Path) -> None:
    with matplotlib.rc_context(STYLE):
        _save(figure, file, dpi=144, facecolor="white")


def _save(figure: Figure, target: Path | io.StringIO, **options: Any) -> None:
    """Save without a warning for each character that Matplotlib's font lacks: a browser has other fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(target, **options)
