"""The tables of an evaluation, drawn by what their columns say: :class:`workloads.contract.Evaluation` has the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from orchestrator.errors import UserError, one_line
from orchestrator.runs import plot_style
from workloads.contract import Columns

FEW = 24
"""Points of a line up to which each has a mark."""

COLOURS = matplotlib.color_sequences["petroff10"]
"""Colours of lines and classes that colour-blind readers can distinguish."""


def figures(folder: Path) -> dict[str, Figure]:
    """A figure of each table below ``folder`` that can be drawn, by its name. Raises UserError for a damaged one."""
    drawn = {file.stem: draw(_read(file)) for file in sorted(folder.glob("*.parquet"))}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def illustrate(folder: Path) -> None:
    """Write ``NAME.png`` next to each table that can be drawn. Raises UserError as :func:`figures`."""
    for name, figure in figures(folder).items():
        plot_style.png(figure, folder / f"{name}.png")


def draw(table: Columns) -> Figure | None:
    """Points or lines; None for a table that is data alone."""
    over, *others = table
    if not len(table[over]):
        return None
    if {"x", "y"} <= table.keys():
        return _points(table["x"], table["y"], table.get("label"))
    lines = [name for name in others if table[name].dtype.kind == "f"]
    return _lines(table, over, lines) if lines and table[over].dtype.kind in "iuf" else None


@plot_style.styled
def _points(x: NDArray[Any], y: NDArray[Any], label: NDArray[Any] | None) -> Figure:
    """A colour and a name for each class; of more classes than colours by rank on a scale, without names."""
    figure, axes = plot_style.canvas(3.6)
    classes = [""] if label is None else sorted(set(label.tolist()))
    named = len(classes) <= len(COLOURS)
    shades = COLOURS if named else matplotlib.colormaps["viridis"](np.linspace(0, 1, len(classes)))
    for shade, name in zip(shades, classes):
        own = slice(None) if label is None else label == name
        # Lines without a line: a scatter's points would have an id in the SVG that those of another plot have too.
        axes.plot(x[own], y[own], "o", color=shade, markersize=3, alpha=0.7, label=name)
    axes.set(xticks=[], yticks=[])
    if label is not None and named:
        figure.legend(loc="outside lower center", ncols=4, markerscale=2)
    return figure


@plot_style.styled
def _lines(table: Columns, over: str, names: list[str]) -> Figure:
    figure, axes = plot_style.canvas(3.2)
    mark = "." if len(table[over]) <= FEW else None
    for number, name in enumerate(names):
        axes.plot(
            table[over], table[name], color=COLOURS[number % len(COLOURS)], marker=mark, label=name.replace("_", " ")
        )
    axes.set_xlabel(over.replace("_", " "))
    if len(names) > 1:
        axes.legend()
    else:
        axes.set_ylabel(names[0].replace("_", " "))
    return figure


def _read(file: Path) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"The table {file} cannot be read: {one_line(error)}", fix="Restore it, or remove it") from None
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns)}
