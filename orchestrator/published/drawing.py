"""A redrawn figure told: as a plot, as data, and on the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.console import Console
from orchestrator.provenance import record as provenance
from orchestrator.published.figures import Curve, Redrawn

COLUMNS = 3
FEW = 12
"""Points of a curve up to which they are in a table; of a longer one its last value is."""


def record(found: Redrawn) -> dict[str, Any]:
    """All of it, as JSON."""
    return {
        "id": found.figure.id,
        "title": found.figure.title,
        "source": found.figure.source,
        "command": provenance.command(),
        "effort": vars(found.effort),
        "selected_on": "validation",
        "false_negatives_by": "test, as published" if found.told_by_test else "validation",
        "complete": not found.missing and not found.failed,
        "missing": dict(found.missing),
        "failed": list(found.failed),
        "curves": [asdict(curve) for curve in found.curves],
    }


def files(found: Redrawn, told: Mapping[str, Any]) -> dict[str, str | bytes]:
    """The plot of each dataset as SVG and PNG, the data as CSV, and a Markdown of the numbers."""
    name, plots = found.figure.id, {}
    for dataset, panels in _panels(found.curves).items():
        stem = f"{name}-{dataset.strip('/').replace('/', '-')}" if dataset else name
        for form in ("svg", "png"):
            plots[f"{stem}.{form}"] = _draw(panels, form, f"{found.figure.title}, {dataset}".rstrip(", "))
    return {**plots, f"{name}.csv": _csv(found.curves), f"{name}.md": _markdown(found, told)}


def show(console: Console, found: Redrawn) -> None:
    for dataset, panels in _panels(found.curves).items():
        for panel, curves in panels.items():
            columns, rows = _cells(curves)
            console.table(": ".join(filter(None, (found.figure.id, dataset, panel))), columns, rows)
    for line in _conditions(found):
        console.say(line)


Panels = dict[str, list[Curve]]


def _panels(curves: Sequence[Curve]) -> dict[str, Panels]:
    """Curves by dataset and by pair of axes: two panels may show the same metric over different parameters."""
    found: dict[str, Panels] = {}
    for curve in curves:
        title = curve.panel if curve.panel != curve.y_label else f"{curve.y_label} over {curve.x_label}"
        found.setdefault(curve.dataset, {}).setdefault(title, []).append(curve)
    return found


def _cells(curves: Sequence[Curve]) -> tuple[list[str], list[list[Any]]]:
    x = curves[0].x
    if len(x) == 1:
        return ["line", curves[0].y_label], [[curve.name, _number(curve.y[0], curve.sd[0])] for curve in curves]
    if len(x) <= FEW and all(curve.x == x for curve in curves):
        rows = [[curve.name, *(_number(y, sd) for y, sd in zip(curve.y, curve.sd)), curve.note] for curve in curves]
        return [curves[0].x_label, *(f"{value:g}" for value in x), "note"], rows
    rows = [
        [curve.name, f"{curve.x[-1]:g}", _number(curve.y[-1], curve.sd[-1]), curve.note] for curve in curves if curve.x
    ]
    return ["line", f"last {curves[0].x_label}", curves[0].y_label, "note"], rows


def _number(value: float, spread: float | None) -> str:
    return f"{value:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _draw(panels: Panels, form: str, title: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    from orchestrator.results.plots import STYLE

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
            axes.legend()
        for axes in grid[count:]:
            axes.set_visible(False)
        figure.suptitle(title)
        figure.savefig(
            stream, format=form, dpi=144, facecolor="white", metadata={"Date": None} if form == "svg" else {}
        )
    return stream.getvalue()


def _plot(axes: Any, curve: Curve) -> None:
    label = f"{curve.name}, {curve.note}" if curve.note else curve.name
    if len(curve.x) == 1:
        axes.bar(curve.name, curve.y, yerr=curve.sd[0], label=label)
        return
    if len(curve.x) > FEW:
        axes.plot(curve.x, curve.y, label=label)
        return
    spreads = [sd or 0.0 for sd in curve.sd]
    axes.errorbar(curve.x, curve.y, yerr=spreads if any(spreads) else None, marker="o", markersize=4, capsize=3,
                  label=label)  # fmt: skip


def _csv(curves: Sequence[Curve]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["dataset", "panel", "line", "x_label", "y_label", "x", "y", "sd"])
    for curve in curves:
        about = [curve.dataset, curve.panel, curve.name, curve.x_label, curve.y_label]
        writer.writerows([*about, *point] for point in zip(curve.x, curve.y, curve.sd))
    return stream.getvalue().rstrip("\n")


def _markdown(found: Redrawn, told: Mapping[str, Any]) -> str:
    figure = found.figure
    lines = [f"## {figure.id}: {figure.title}", "", f"{figure.source}. `{told['command']}`", ""]
    lines += [f"{line}  " for line in _conditions(found)]
    for dataset, panels in _panels(found.curves).items():
        for panel, curves in panels.items():
            columns, rows = _cells(curves)
            lines += ["", f"### {dataset} {panel}".replace("  ", " "), "", "| " + " | ".join(columns) + " |"]
            lines.append("| " + " | ".join(["---"] * len(columns)) + " |")
            lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines).rstrip()


def _conditions(found: Redrawn) -> list[str]:
    """What a reader must know about how the curves came about."""
    lines = [f"Left out: {why}" for why in (*found.missing.values(), *found.failed)]
    if found.effort.quick:
        lines.append("Quick: a few epochs, to see that it works. These numbers mean nothing.")
    if found.figure.reads_test:
        part = "test part, as published" if found.told_by_test else "validation part, not by the test part as published"
        lines.append(f"False negatives are told by the {part}.")
    return lines
