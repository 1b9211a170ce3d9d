"""Write the files of a sweep's report: tables, plots and an HTML page, which are also logged to MLflow."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.storage.names import TRIALS
from orchestrator.storage.records import RunFolder

PAGE = "report.html"
IMAGES = ("history", "learning", "seeds", "parallel", "importance", "pareto")
FILES = ("trials.csv", TRIALS, "best.json", PAGE, *(f"{name}.png" for name in IMAGES))


def write_trials(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write ``trials.csv`` and ``trials.json``, with one row a trial."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "trials.csv").open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    (folder / TRIALS).write_text(json.dumps(list(rows), indent=1))


def write_page(folder: RunFolder, rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
    """Write ``report.html`` and its plots as PNG; ``result`` will be the result in the sweep's record."""
    from orchestrator.report import figures, run_page
    from orchestrator.runs import plot_style

    end = {"status": result["status"], "ended": datetime.now(UTC).isoformat()}
    settled = RunFolder(folder.path, {**folder.record, **end, "result": dict(result)})
    drawn = figures.of_sweep(settled)
    for name in IMAGES:
        if not isinstance(figure := drawn.get(name, ""), str):
            plot_style.png(figure, folder.path / f"{name}.png")
    (folder.path / PAGE).write_text(run_page.of_sweep(settled, rows, drawn), "utf-8", "backslashreplace")
