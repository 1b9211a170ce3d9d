"""A reproduced table told: on the terminal, as JSON, Markdown and CSV, and on an MLflow run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.console import Console
from orchestrator.provenance import private_files
from orchestrator.provenance import record as provenance
from orchestrator.report import statistics
from orchestrator.report.markdown import csv_text
from orchestrator.report.markdown import table as markdown_table
from orchestrator.reproduce.ranking import Step
from orchestrator.reproduce.table import Block, Measured, Reproduction
from orchestrator.storage.settings import Settings
from orchestrator.tracking import store
from orchestrator.tracking.tracker import Tracker

FOLDER = "reproductions"
"""Below the home: a folder for each table or figure, and for each choice of its rows."""


def origin(settings: Settings, workload: str) -> dict[str, Any]:
    """When, and by which code, a record is written: the commit of each repository, ``-dirty`` with changes."""
    sources = provenance.sources(apart=(settings.home, settings.storage), workload=workload)
    commits = {one.name: one.commit and one.commit[:12] + "-dirty" * bool(one.dirty) for one in sources}
    return {"when": datetime.now(UTC).isoformat(timespec="seconds"), "commits": commits}


def written(told: Mapping[str, Any]) -> str:
    """One sentence for a page: when and by which commit the record was written."""
    commits = [f"{commit} of {name}" for name, commit in told["commits"].items() if commit]
    return f"Written at {told['when']} by {', '.join(commits) or 'code outside of git'}."


def record(found: Reproduction) -> dict[str, Any]:
    """All of it, as JSON."""
    table, effort = found.table, found.effort
    return {
        "id": table.id,
        "title": table.title,
        "source": table.source,
        "workload": table.regime.workload,
        "unit": table.regime.unit,
        "by": list(table.by),
        "lower": list(table.lower),
        "command": provenance.command(),
        "effort": vars(effort),
        "selected_on": "test, as published" if effort.as_published else "validation",
        "compared_by": table.compared_by,
        "measured_on": "test" if table.measure is None else "",
        "complete": found.complete,
        "missing": dict(found.missing),
        "rows": [_row(found, block, row) for block in found.blocks for row in block.rows],
        "order": [{**block.where, **_step(step)} for block in found.blocks for step in block.order],
    }


def _row(found: Reproduction, block: Block, measured: Measured) -> dict[str, Any]:
    row, choice, table = measured.row, measured.choice, found.table
    return {
        **block.where,
        "method": row.method,
        "ours": row.ours,
        "params": dict(choice.params) if choice else None,
        "epochs": choice.epochs if choice else None,
        "search": choice.search if choice else None,
        "runs": [done.id for done in measured.runs],
        "commits": sorted({commit for done in measured.runs for commit in done.commits}),
        "failure": measured.failure,
        "doubts": [f"{doubt.tag}: {doubt.why}" for doubt in table.why(row)],
        "metrics": {metric: _value(found, measured, metric) for metric in table.columns} if measured.values else {},
    }


def _value(found: Reproduction, measured: Measured, metric: str) -> dict[str, Any]:
    values = list(measured.values[metric])
    ours, published = statistics.summary(values), measured.row.published.get(metric)
    spread = ours.spread or 0.0
    reached = None
    if published is not None:
        reached = ours.mean - spread <= published if metric in found.table.lower else ours.mean + spread >= published
    return {
        "mean": ours.mean,
        "sd": ours.spread,
        "values": values,
        "published": published,
        "difference": None if published is None else ours.mean - published,
        "reached": reached,
        "doubts": [doubt.tag for doubt in found.table.why(measured.row, metric)],
    }


def _step(step: Step) -> dict[str, Any]:
    difference = step.difference
    return {
        "metric": step.metric, "better": step.better, "worse": step.worse,
        "difference": difference.value, "low": difference.low, "high": difference.high,
        "p": difference.p, "p_holm": step.p, "test": difference.test or difference.why,
        "named": step.named, "pairs": step.pairs,
    }  # fmt: skip


def show(console: Console, told: Mapping[str, Any]) -> None:
    """A table a block, by the metric that the methods are compared by; the other metrics are in the files."""
    metric, on = told["compared_by"], f" on {told['measured_on']}" if told["measured_on"] else ""
    columns = ["method", "ours", "sd", *(["published", "difference"] if _printed(told) else []), "note"]
    for place, rows in _blocks(told).items():
        cells = [_cells(row, row["metrics"].get(metric)) for row in rows]
        shown = [[row[name] for name in columns] for row in cells]
        console.table(f"{told['id']}, {' '.join(place)}: {metric}{on}", columns, shown)
        for line in [*_order(told, place), *_doubts(rows)]:
            console.say(f"  {line}")
    for why in told["missing"].values():
        console.say(f"Left out: {why}")
    for line in _conditions(told):
        console.say(line)


def markdown(told: Mapping[str, Any]) -> str:
    """Every metric as ``ours ± sd / published``, the order of the methods, and the doubts."""
    lines = [f"## {told['id']}: {told['title']}", "", f"{told['source']}. `{told['command']}`", "", written(told)]
    if commits := sorted({commit for row in told["rows"] for commit in row["commits"]}):
        lines.append(f"Its runs are of {', '.join(commits)}.")
    lines += ["", *_conditions(told)]
    for place, rows in _blocks(told).items():
        metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
        cells = []
        for row in rows:
            values = [_both(row["metrics"][name]) if name in row["metrics"] else "" for name in metrics]
            cells.append([row["method"], *values, _note(row, None)])
        lines += ["", f"### {', '.join(place)}", "", markdown_table(["method", *metrics, "note"], cells)]
        lines += ["", *(f"- {line}" for line in [*_order(told, place), *_doubts(rows)])]
        lines += ["", f"{told['compared_by']} by seed:", "", *(f"- {line}" for line in _by_seed(told, rows))]
    lines += ["", *(f"- Left out: {why}" for why in told["missing"].values())]
    return "\n".join(lines).rstrip()


def as_csv(told: Mapping[str, Any]) -> str:
    """A line a row and metric, every number in full."""
    numbers, rows = ("mean", "sd", "n", "published", "difference", "reached"), []
    for row in told["rows"]:
        for metric, value in row["metrics"].items():
            cells = {**value, "n": len(value["values"])}
            about = [*(row[name] for name in told["by"]), row["method"], metric]
            rows.append([*about, *(cells[name] for name in numbers), " ".join(value["doubts"])])
    return csv_text([*told["by"], "method", "metric", *numbers, "doubts"], rows)


def keep(
    told: Mapping[str, Any], texts: Mapping[str, str | bytes], name: str, settings: Settings
) -> tuple[Path, str | None]:
    """Write the texts by file name, with ``told`` as JSON, and put them on the MLflow run of that name.

    Returns the folder, and one sentence where MLflow could not be reached: it is tried again by the next call.
    """
    folder = settings.home / FOLDER / name
    private_files.make_folder(folder)
    written = {f"{told['id']}.json": json.dumps(told, indent=1), **texts}
    for file, text in written.items():
        (folder / file).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
    return folder, _track(told, [folder / file for file in sorted(written)], folder, settings)


def _track(told: Mapping[str, Any], files: Sequence[Path], folder: Path, settings: Settings) -> str | None:
    if settings.tracking is None:
        return None
    name = folder.name
    note = next((file for file in files if file.suffix == ".md"), None)
    tags = {
        "orchestrator.kind": "reproduction",
        "orchestrator.reproduces": told["source"],
        "orchestrator.selected_on": told["selected_on"],
        **{f"orchestrator.{name}": str(value).lower() for name, value in told["effort"].items()},
        **({"mlflow.note.content": note.read_text(encoding="utf-8")} if note else {}),
    }
    artifacts = store.ensure(settings.tracking)
    tracker = Tracker(
        settings.tracking, settings.experiment or told["workload"], name, folder, artifacts=artifacts, resuming=True
    )
    tracker.start(name, name, params={"id": told["id"]}, tags=tags)
    tracker.files(name, files)
    tracker.end(name, "FINISHED" if told["complete"] else "FAILED")
    return tracker.close()


Place = tuple[str, ...]


def _blocks(told: Mapping[str, Any]) -> dict[Place, list[dict[str, Any]]]:
    blocks: dict[Place, list[dict[str, Any]]] = {}
    for row in told["rows"]:
        blocks.setdefault(tuple(row[name] for name in told["by"]), []).append(row)
    return blocks


def _printed(told: Mapping[str, Any]) -> bool:
    """Whether anything is published beside which ours could stand."""
    return any(value["published"] is not None for row in told["rows"] for value in row["metrics"].values())


def _cells(row: Mapping[str, Any], value: Mapping[str, Any] | None) -> dict[str, str]:
    def number(name: str, form: str = ".4f") -> str:
        return "" if value is None or value[name] is None else format(value[name], form)

    return {
        "method": row["method"], "ours": number("mean"), "sd": number("sd"), "published": number("published"),
        "difference": number("difference", "+.4f"), "note": _note(row, value),
    }  # fmt: skip


def _note(row: Mapping[str, Any], value: Mapping[str, Any] | None) -> str:
    if row["failure"]:
        return "failed"
    words = [] if value is None or value["reached"] is None else ["reached" if value["reached"] else "not reached"]
    tags = value["doubts"] if value else [doubt.partition(":")[0] for doubt in row["doubts"]]
    return ", ".join([*words, *dict.fromkeys(tags)])


def _both(value: Mapping[str, Any]) -> str:
    spread = "" if value["sd"] is None else f" ± {value['sd']:.4f}"
    return f"{value['mean']:.4f}{spread}" + ("" if value["published"] is None else f" / {value['published']:.4f}")


def _by_seed(told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """``BPR: 0.41378, 0.41596``: of each row the values that its mean is of; the other metrics' are in the JSON."""
    metric = told["compared_by"]
    measured = [(row["method"], row["metrics"][metric]["values"]) for row in rows if metric in row["metrics"]]
    return [f"{method}: {', '.join(f'{value:.5f}' for value in values)}" for method, values in measured]


def _order(told: Mapping[str, Any], place: Place) -> list[str]:
    """``DPL > HCL by 0.0096 (0.0051 to 0.0140), p = 0.0004``, and where the published order is another one."""
    steps = [step for step in told["order"] if tuple(step[name] for name in told["by"]) == place]
    lines = []
    for step in steps:
        interval = "" if step["low"] is None else f" ({step['low']:.4f} to {step['high']:.4f})"
        p = f", p = {step['p_holm']:.2g}" if step["p_holm"] is not None else f" ({step['test']})"
        metric = "" if step["metric"] == told["compared_by"] else f"{step['metric']}: "
        lines.append(f"{metric}{step['better']} > {step['worse']} by {step['difference']:.4f}{interval}{p}")
    tests = {step["test"] for step in steps if step["p_holm"] is not None}
    if tests:
        means = f"means of each {told['unit']} over the seeds, " if any("paired" in test for test in tests) else ""
        lines.append(f"{', '.join(sorted(tests))}; {means}p corrected by Holm{_over(steps)}")
    ours, theirs = (_ranked(told, place, name) for name in ("mean", "published"))
    if len(theirs) > 1 and theirs != [name for name in ours if name in theirs]:
        lines.append(f"published order: {' > '.join(theirs)}")
    return lines


def _over(steps: Sequence[Mapping[str, Any]]) -> str:
    """What the p values are corrected over, and which pairs were chosen by the values that they are tested with."""
    named = max((step["pairs"] for step in steps if step["named"]), default=0)
    chosen = [step for step in steps if not step["named"]]
    if not chosen:
        return ""
    first = chosen[0]
    since = f", from {first['better']} > {first['worse']} on," if named else ""
    before = f" over the {named} named by the source; " if named else ": "
    return f"{before}neighbours{since} are chosen by these very values, theirs is over all {first['pairs']} pairs"


def _ranked(told: Mapping[str, Any], place: Place, by: str) -> list[str]:
    """The rows that repeat a published one, from the best to the worst by our mean or by the published value."""
    values, lower = {}, told["compared_by"] in told["lower"]
    for row in _blocks(told)[place]:
        value = row["metrics"].get(told["compared_by"])
        if not row["ours"] and value and value["published"] is not None:
            values[row["method"]] = value[by]
    return sorted(values, key=values.__getitem__, reverse=not lower)


def _doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why rows failed, and each doubt once, with the methods that it is about."""
    about: dict[str, list[str]] = {row["failure"]: [row["method"]] for row in rows if row["failure"]}
    for row in rows:
        for doubt in row["doubts"]:
            about.setdefault(doubt, []).append(row["method"])
    return [f"{doubt} ({', '.join(methods) if len(methods) < len(rows) else 'all rows'})"
            for doubt, methods in about.items()]  # fmt: skip


def _conditions(told: Mapping[str, Any]) -> list[str]:
    """What a reader must know about how the numbers came about."""
    effort, lines = told["effort"], []
    if effort["quick"]:
        lines.append("Quick: a few epochs, to see that it works. These numbers mean nothing.")
    if effort["as_published"]:
        lines.append(
            "As published: searched rows take the best epoch on test by each metric, an oracle reads the test part; "
            "both flatter."
        )
    return lines
