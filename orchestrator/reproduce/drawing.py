"""Show and save a reproduced figure or computation: as plots, as data, and on the terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.console import Console
from orchestrator.console import show as shown
from orchestrator.provenance import record as provenance
from orchestrator.report.markdown import csv_text
from orchestrator.report.markdown import table as markdown_table
from orchestrator.reproduce import table_report
from orchestrator.reproduce.figures import Redrawn
from workloads.published import Computation, Curve

COLUMNS, LINE = 3, 0.2
"""Panels in a row, and the height of one line of a legend in inches."""

FEW = 12
"""Maximum number of points of a curve in a table; of longer curves it has only the last value."""


def record(redrawn: Redrawn) -> dict[str, Any]:
    """The record as JSON."""
    figure = redrawn.figure
    return {
        "id": figure.id,
        "title": figure.title,
        "source": figure.source,
        "workload": figure.workload if isinstance(figure, Computation) else figure.regime.workload,
        "command": provenance.command(),
        "effort": {"quick": redrawn.budget.quick} if isinstance(figure, Computation) else vars(redrawn.budget),
        "selected_on": "nothing" if isinstance(figure, Computation) else "validation",
        "training_sees_test": redrawn.sees_test,
        "complete": not redrawn.missing and not redrawn.failed,
        "missing": dict(redrawn.missing),
        "failed": list(redrawn.failed),
        "curves": [asdict(curve) for curve in redrawn.drawn.curves],
        "tables": {name: [dict(row) for row in rows] for name, rows in redrawn.drawn.tables.items()},
    }


def files(redrawn: Redrawn, result: Mapping[str, Any]) -> dict[str, str | bytes]:
    """The files by name: a plot of each dataset as SVG and PNG, curves and tables as CSV, a page in Markdown."""
    name = redrawn.figure.id
    made: dict[str, str | bytes] = {}
    for dataset, panels in _panels(redrawn.drawn.curves).items():
        stem = f"{name}-{dataset.strip('/').replace('/', '-')}" if dataset else name
        for form in ("svg", "png"):
            made[f"{stem}.{form}"] = _draw(panels, form, f"{redrawn.figure.title}, {dataset}".rstrip(", "))
    if redrawn.drawn.curves:
        made[f"{name}.csv"] = _csv(redrawn.drawn.curves)
    for table, rows in redrawn.drawn.tables.items():
        made[f"{name}-{table}.csv"] = csv_text(
            list(rows[0]) if rows else [], ([row[name] for name in rows[0]] for row in rows)
        )
    return {**made, f"{name}.md": _markdown(redrawn, result)}


def show(console: Console, redrawn: Redrawn) -> None:
    for title, columns, rows in _tables(redrawn):
        console.table(f"{redrawn.figure.id}: {title}", columns, rows)
    for line in _conditions(redrawn):
        console.say(line)


Panels = dict[str, list[Curve]]


def _panels(curves: Sequence[Curve]) -> dict[str, Panels]:
    """Curves by dataset and title of the panel; panels may show the same metric over different parameters."""
    panels: dict[str, Panels] = {}
    for curve in curves:
        title = curve.panel if curve.panel != curve.y_label else f"{curve.y_label} over {curve.x_label}"
        panels.setdefault(curve.dataset, {}).setdefault(title, []).append(curve)
    return panels


def _tables(redrawn: Redrawn) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Title, columns and rows of the curves of each panel, then of each computed table."""
    tables = [
        (": ".join(filter(None, (dataset, panel))), *_cells(curves))
        for dataset, panels in _panels(redrawn.drawn.curves).items()
        for panel, curves in panels.items()
    ]
    for name, rows in redrawn.drawn.tables.items():
        tables.append((name, list(rows[0]) if rows else [], [[*map(shown, row.values())] for row in rows]))
    return tables


def _cells(curves: Sequence[Curve]) -> tuple[list[str], list[list[Any]]]:
    x = list(curves[0].x)
    if len(x) == 1:
        return ["line", curves[0].y_label], [[curve.name, _number(curve, 0)] for curve in curves]
    if len(x) <= FEW and all(list(curve.x) == x for curve in curves):
        rows = [[curve.name, *(_number(curve, at) for at in range(len(x))), curve.note] for curve in curves]
        return [curves[0].x_label, *(f"{value:g}" for value in x), "note"], rows
    rows = [[curve.name, f"{curve.x[-1]:g}", _number(curve, -1), curve.note] for curve in curves if len(curve.x)]
    return ["line", f"last {curves[0].x_label}", curves[0].y_label, "note"], rows


def _number(curve: Curve, at: int) -> str:
    spread = curve.sd[at] if curve.sd else None
    return f"{shown(curve.y[at])}" + ("" if spread is None else f" ± {shown(spread)}")


def _draw(panels: Panels, form: str, title: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    from orchestrator.runs.plot_style import STYLE

    count = len(panels)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    stream = io.BytesIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": title}):
        figure = Figure(figsize=(4.2 * columns, 3.2 * rows))
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, (panel, curves) in zip(grid, panels.items()):
            for curve in curves:
                _plot(axes, curve)
            axes.set(xlabel=curves[0].x_label, ylabel=curves[0].y_label, title=panel)
            axes.set(**{f"{axis}scale": "log" for axis in curves[0].log})
        legends = [axes.get_legend_handles_labels() for axes in grid[:count]]
        if all(labels == legends[0][1] for _, labels in legends):  # one for all
            figure.set_figheight(figure.get_figheight() + LINE * -(-len(legends[0][1]) // columns))
            figure.legend(*legends[0], loc="outside lower center", ncols=columns)
        else:
            for axes in grid[:count]:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        for axes in grid[count:]:
            axes.set_visible(False)
        figure.suptitle(title, wrap=True)
        figure.savefig(
            stream, format=form, dpi=144, facecolor="white", metadata={"Date": None} if form == "svg" else {}
        )
    return stream.getvalue()


def _plot(axes: Any, curve: Curve) -> None:
    label = f"{curve.name}, {curve.note}" if curve.note else curve.name
    if len(curve.x) == 1:
        axes.bar(curve.name, curve.y, yerr=curve.sd[0] if curve.sd else None, label=label)
        axes.set_xticks([])  # the legend has the names
        return
    if len(curve.x) > FEW:
        axes.plot(curve.x, curve.y, label=label)
        return
    spreads = [sd or 0.0 for sd in curve.sd]
    axes.errorbar(curve.x, curve.y, yerr=spreads if any(spreads) else None, marker="o", markersize=4, capsize=3,
                  label=label)  # fmt: skip


def _csv(curves: Sequence[Curve]) -> str:
    rows: list[list[Any]] = []
    for curve in curves:
        about = [curve.dataset, curve.panel, curve.name, curve.x_label, curve.y_label]
        spreads = curve.sd or [None] * len(curve.x)
        rows += ([*about, *point] for point in zip(curve.x, curve.y, spreads))
    return csv_text(["dataset", "panel", "line", "x_label", "y_label", "x", "y", "sd"], rows)


def _markdown(redrawn: Redrawn, result: Mapping[str, Any]) -> str:
    figure = redrawn.figure
    lines = [f"## {figure.id}: {figure.title}", "", f"{figure.source}. `{result['command']}`", ""]
    lines += [table_report.written(result), ""]
    lines += [f"{line}  " for line in _conditions(redrawn)]
    for title, columns, rows in _tables(redrawn):
        lines += [*(["", f"### {title}"] if title else []), "", markdown_table(columns, rows)]
    if by_seed := _by_seed(redrawn.drawn.curves):
        lines += ["", "By seed:", "", *by_seed]
    return "\n".join(lines).rstrip()


def _by_seed(curves: Sequence[Curve]) -> list[str]:
    """The values by seed of short curves, ``- BNS, λ = 5: 0.41887, 0.41790``; each point once."""
    points = {
        f"- {curve.name}, {curve.x_label} = {x:g}: {', '.join(f'{value:.5f}' for value in values)}": None
        for curve in curves
        if len(curve.x) <= FEW
        for x, values in zip(curve.x, curve.by_seed)
        if len(values) > 1
    }
    return list(points)


def _conditions(redrawn: Redrawn) -> list[str]:
    """Notes on how the curves were obtained."""
    lines = [f"Left out: {why}" for why in (*redrawn.missing.values(), *redrawn.failed)]
    if redrawn.budget.quick:
        lines.append("Quick: a test that it works. These numbers mean nothing.")
    if redrawn.sees_test is not None:
        part = "by the test part, as published" if redrawn.sees_test else "without the test part, which the source uses"
        lines.append(f"The values during training are computed {part}.")
    return lines
