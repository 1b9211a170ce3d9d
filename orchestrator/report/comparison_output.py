"""A comparison shown: as a table, Markdown, CSV, JSON, or an HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.console import aligned, show
from orchestrator.report import markdown
from orchestrator.report.comparison import Comparison, Row, brief, compare
from orchestrator.storage.records import RunFolder

if TYPE_CHECKING:
    from orchestrator.report.html import Section

Format = Literal["table", "markdown", "csv", "json", "html"]


def heading(found: Comparison) -> str:
    against = f", against {found.name(found.reference)}" if len({row.group for row in found.rows}) > 1 else ""
    return f"On {found.split}{against}"


def records(found: Comparison) -> list[dict[str, Any]]:
    """A flat record a metric and group, every number in full; ``p_holm`` is the corrected one."""
    rows = []
    for row in found.rows:
        d = row.difference
        rows.append(
            {
                "metric": row.metric,
                **dict(zip(found.by, row.group)),
                "n": row.summary.n,
                "mean": row.summary.mean,
                "sd": row.summary.spread,
                "difference": d.value if d else None,
                "low": d.low if d else None,
                "high": d.high if d else None,
                "p": d.p if d else None,
                "p_holm": row.p,
                "test": (d.test or d.why) if d else "reference",
            }
        )
    return rows


def text(found: Comparison, form: Format, folders: Sequence[RunFolder] = ()) -> str:
    """The comparison in one of the forms, without a newline at its end. ``folders`` are for the page's accounts."""
    if form == "json":
        return json.dumps(
            {
                "split": found.split,
                "by": list(found.by),
                "reference": dict(zip(found.by, found.reference)),
                "rows": [
                    {**record, "values": list(row.values)} for record, row in zip(records(found), found.rows)
                ],
                "notes": list(found.notes),
            }
        )  # fmt: skip
    if form == "csv":
        flat = records(found)
        return markdown.csv_text(list(flat[0]), (row.values() for row in flat))
    if form == "html":
        return page(found, folders)
    columns, rows = cells(found)
    if form == "markdown":
        return "\n\n".join([heading(found), markdown.table(columns, rows), *found.notes])
    return "\n".join([heading(found), "", aligned([columns, *rows]), *(["", *found.notes] if found.notes else [])])


def cells(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of short texts; columns that say nothing are left out."""
    several = len({row.metric for row in found.rows}) > 1
    tests = {row.difference.test for row in found.rows if row.difference and row.difference.test}
    columns = [*(["metric"] if several else []), *found.by, "n", found.rows[0].metric if not several else "mean", "sd"]
    compared = any(row.difference for row in found.rows)
    columns += ["difference", "95% interval", "p (Holm)"] if compared else []
    columns += ["test"] if len(tests) > 1 else []
    rows = []
    for row in found.rows:
        line = [*([row.metric] if several else []), *map(brief, row.group), str(row.summary.n), show(row.summary.mean)]
        line.append("n < 2" if row.summary.spread is None else f"{row.summary.spread:.2g}")
        line += _difference(row) if compared else []
        line += [row.difference.test or "" if row.difference else ""] if len(tests) > 1 else []
        rows.append(line)
    return columns, rows


def report(folders: Sequence[RunFolder]) -> str:
    """The page about one run or sweep, or the one that compares several on validation."""
    from orchestrator.report import listing, run_page

    if len(folders) > 1:
        return page(compare(folders), folders)
    if folders[0].record["kind"] == "run":
        return run_page.of_run(folders[0])
    return run_page.of_sweep(folders[0], listing.trial_rows(folders[0]))


def page(found: Comparison, folders: Sequence[RunFolder]) -> str:
    """The comparison as a self-contained page."""
    from orchestrator.report import plots, run_page
    from orchestrator.report.html import Plot, Section, Table, render
    from orchestrator.runs import plot_style

    columns, rows = cells(found)
    drawn = []
    for metric in dict.fromkeys(row.metric for row in found.rows):
        groups = [(found.name(row.group), row.values) for row in found.rows if row.metric == metric]
        caption = f"{metric} on {found.split}"
        drawn.append(Plot(plot_style.svg(plots.groups(groups, caption), caption), caption))
    marked = next(i for i, row in enumerate(found.rows) if row.group == found.reference)
    sections = [
        Section(heading(found), plots=drawn, tables=[Table(columns, rows, marked)], notes=found.notes),
        _compared(folders),
        run_page.costs(folders),
    ]
    by = f" by {', '.join(found.by)}" if found.by else ""
    return render(f"Comparison{by}", f"{len(folders)} runs and sweeps", sections)


def _compared(folders: Sequence[RunFolder]) -> Section:
    """What was asked of all alike, and of each."""
    from orchestrator.report import run_page
    from orchestrator.report.html import Section, Table

    asked = [run_page.asked(folder) for folder in folders]
    common = {name: value for name, value in asked[0].items() if all(other.get(name) == value for other in asked)}
    rows = [[folder.id, run_page.subtitle(folder), folder.record["command"]] for folder in folders]
    return Section("What is compared", common, tables=[Table(["id", "what", "command"], rows)])


def _difference(row: Row) -> list[str]:
    d = row.difference
    if d is None:
        return ["reference", "", ""]
    interval = f"{d.low:+.3g} to {d.high:+.3g}" if d.low is not None and d.high is not None else ""
    return [f"{d.value:+.3g}", interval, f"{row.p:.2g}" if row.p is not None else d.why or ""]
