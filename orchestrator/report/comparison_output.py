"""Output of a comparison as a table, Markdown, CSV, JSON, or an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.console import aligned, json_line, show
from orchestrator.report import markdown, statistics
from orchestrator.report.comparison import Comparison, Row, brief, compare
from orchestrator.report.power import MOST
from orchestrator.storage.records import RunFolder

if TYPE_CHECKING:
    from orchestrator.report.html import Section

Format = Literal["table", "markdown", "csv", "json", "html"]


def heading(comparison: Comparison) -> str:
    against = (
        f", against {comparison.name(comparison.reference)}" if len({row.group for row in comparison.rows}) > 1 else ""
    )
    return f"On {comparison.split}{against}"


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat record for each metric and group, with all digits; ``p_holm`` is the corrected p."""
    rows = []
    for row in comparison.rows:
        d = row.difference
        rows.append(
            {
                "metric": row.metric,
                **dict(zip(comparison.by, row.group)),
                "n": row.summary.n,
                "mean": row.summary.mean,
                "sd": row.summary.spread,
                "difference": d.value if d else None,
                "low": d.low if d else None,
                "high": d.high if d else None,
                "p": d.p if d else None,
                "p_holm": row.p,
                "test": (d.test or d.why) if d else "reference",
                "se_seeds": row.seeds_error,
                "se_units": row.units_error,
                "detects": row.power.detectable if row.power else None,
                "seeds_needed": row.power.needed if row.power else None,
            }
        )
    return rows


def text(comparison: Comparison, form: Format, folders: Sequence[RunFolder] = ()) -> str:
    """The comparison in one of the formats, without a final newline. ``folders`` are needed for the HTML page."""
    if form == "json":
        return json_line(
            {
                "split": comparison.split,
                "by": list(comparison.by),
                "reference": dict(zip(comparison.by, comparison.reference)),
                "rows": [
                    {**record, "values": list(row.values)} for record, row in zip(records(comparison), comparison.rows)
                ],
                "notes": list(comparison.notes),
            }
        )  # fmt: skip
    if form == "csv":
        flat = records(comparison)
        return markdown.csv_text(list(flat[0]), (row.values() for row in flat))
    if form == "html":
        return page(comparison, folders)
    columns, rows = cells(comparison)
    if form == "markdown":
        return "\n\n".join([heading(comparison), markdown.table(columns, rows), *comparison.notes])
    return "\n".join(
        [heading(comparison), "", aligned([columns, *rows]), *(["", *comparison.notes] if comparison.notes else [])]
    )


def cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of short texts; columns without information are left out."""
    several = len({row.metric for row in comparison.rows}) > 1
    tests = {row.difference.test for row in comparison.rows if row.difference and row.difference.test}
    columns = [
        *(["metric"] if several else []),
        *comparison.by,
        "n",
        comparison.rows[0].metric if not several else "mean",
        "sd",
    ]
    compared = any(row.difference for row in comparison.rows)
    columns += ["difference", "95% interval", "p (Holm)"] if compared else []
    columns += ["test"] if len(tests) > 1 else []
    more = [name for name, cell in _PRECISION.items() if any(cell(row) for row in comparison.rows)]
    columns += more
    rows = []
    for row in comparison.rows:
        line = [*([row.metric] if several else []), *map(brief, row.group), str(row.summary.n), show(row.summary.mean)]
        line.append("n < 2" if row.summary.spread is None else f"{row.summary.spread:.2g}")
        line += _difference(row) if compared else []
        line += [row.difference.test or "" if row.difference else ""] if len(tests) > 1 else []
        line += [_PRECISION[name](row) for name in more]
        rows.append(line)
    return columns, rows


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _needed(row: Row) -> str:
    if row.power is None:
        return ""
    return str(row.power.needed) if row.power.needed <= MOST else f"> {MOST}"


_PRECISION: Mapping[str, Callable[[Row], str]] = {
    "se (seeds)": lambda row: _rounded(row.seeds_error),
    "se (units)": lambda row: _rounded(row.units_error),
    "detects": lambda row: _rounded(row.power.detectable if row.power else None),
    "seeds needed": _needed,
}


def report(folders: Sequence[RunFolder]) -> str:
    """The HTML page of one run or sweep, or of a comparison of several on validation."""
    from orchestrator.report import listing, run_page

    if len(folders) > 1:
        return page(compare(folders), folders)
    if folders[0].record["kind"] == "run":
        return run_page.of_run(folders[0])
    return run_page.of_sweep(folders[0], listing.trial_rows(folders[0]))


def page(comparison: Comparison, folders: Sequence[RunFolder]) -> str:
    """The comparison as a self-contained page."""
    from orchestrator.report import plots, run_page
    from orchestrator.report.html import Plot, Section, Table, render
    from orchestrator.runs import plot_style

    columns, rows = cells(comparison)
    drawn = []
    for metric in dict.fromkeys(row.metric for row in comparison.rows):
        groups = [(comparison.name(row.group), row.values) for row in comparison.rows if row.metric == metric]
        caption = f"{metric} on {comparison.split}"
        drawn.append(Plot(plot_style.svg(plots.groups(groups, caption), caption), caption))
    marked = next(i for i, row in enumerate(comparison.rows) if row.group == comparison.reference)
    sections = [
        Section(heading(comparison), plots=drawn, tables=[Table(columns, rows, marked)], notes=comparison.notes),
        _compared(folders),
        run_page.costs(folders),
    ]
    by = f" by {', '.join(comparison.by)}" if comparison.by else ""
    return render(f"Comparison{by}", f"{len(folders)} runs and sweeps", sections)


def _compared(folders: Sequence[RunFolder]) -> Section:
    """The request that all have in common, and each one's command."""
    from orchestrator.report import run_page
    from orchestrator.report.html import Section, Table

    requests = [run_page.request(folder) for folder in folders]
    common = {name: value for name, value in requests[0].items() if all(other.get(name) == value for other in requests)}
    rows = [[folder.id, run_page.subtitle(folder), folder.record["command"]] for folder in folders]
    return Section("What is compared", common, tables=[Table(["id", "what", "command"], rows)])


def _difference(row: Row) -> list[str]:
    d = row.difference
    if d is None:
        return ["reference", "", ""]
    interval = f"{d.low:+.3g} to {d.high:+.3g}" if d.low is not None and d.high is not None else ""
    return [f"{d.value:+.3g}", interval, statistics.p_text(row.p) if row.p is not None else d.why or ""]
