"""Show and save a reproduced table: on the terminal, as JSON, Markdown and CSV, and on an MLflow run."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.config.spec import digest
from orchestrator.console import Console
from orchestrator.console import show as show_value
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
from workloads.published import Table

FOLDER = "reproductions"
"""Folder in the home, with a folder for each table or figure and each selection of its parts."""


CLOSED = "gap closed"
"""Column: the share of the gap between BPR and the supervised oracle that a row closes, by the compared metric; with
the name of a further metric, by that one."""


def origin(settings: Settings, workload: str) -> dict[str, Any]:
    """The time, and the commit of each repository, with ``-dirty`` if it has changes."""
    sources = provenance.sources(apart=(settings.home, settings.storage), workload=workload)
    commits = {one.name: one.commit and one.commit[:12] + "-dirty" * bool(one.dirty) for one in sources}
    return {"when": datetime.now(UTC).isoformat(timespec="seconds"), "commits": commits}


def written(result: Mapping[str, Any]) -> str:
    """One sentence on the time and commits of the record."""
    commits = [f"{commit} of {name}" for name, commit in result["commits"].items() if commit]
    return f"Written at {result['when']} by {', '.join(commits) or 'code outside of git'}."


def record(reproduction: Reproduction) -> dict[str, Any]:
    """The record as JSON."""
    table = reproduction.table
    budget = reproduction.budget
    return {
        "id": table.id,
        "title": table.title,
        "source": table.source,
        "workload": table.regime.workload,
        "unit": table.regime.unit,
        "by": list(table.by),
        "lower": list(table.lower),
        "command": provenance.command(),
        "effort": vars(budget),
        "selected_on": "test, as published" if budget.as_published else "validation",
        "compared_by": table.compared_by,
        "measured_on": "test" if table.measure is None else "",
        "complete": reproduction.complete,
        "missing": dict(reproduction.missing),
        "rows": [_row(reproduction, block, row) for block in reproduction.blocks for row in block.rows],
        "order": [{**block.where, **_step(step)} for block in reproduction.blocks for step in block.order],
    }


def _row(reproduction: Reproduction, block: Block, measured: Measured) -> dict[str, Any]:
    row = measured.row
    choice = measured.choice
    table = reproduction.table
    dataset = row.where["dataset"]
    columns = table.columns_on(dataset)
    gaps = (table.compared_by, *(table.further[dataset].metrics if dataset in table.further else ()))
    return {
        **block.where,
        "method": row.method,
        "ours": row.ours,
        "params": dict(choice.params) if choice else None,
        "searched": [name for name in row.settings.searched if choice and choice.search and name in choice.params],
        "epochs": choice.epochs if choice else None,
        "search": choice.search if choice else None,
        "trials": choice.trials if choice else 0,
        "failed_trials": choice.failed if choice else 0,
        "runs": [done.id for done in measured.runs],
        "commits": sorted({commit for done in measured.runs for commit in done.commits}),
        "failure": measured.failure,
        "doubts": [f"{doubt.tag}: {doubt.why}" for doubt in table.why(row)],
        "metrics": {metric: _value(table, measured, metric) for metric in columns if measured.values},
        "closed": {metric: share for metric in gaps if (share := _closed(table, block, measured, metric)) is not None},
    }


def _closed(table: Table, block: Block, measured: Measured, metric: str) -> float | None:
    """The share of the gap between the table's baseline and its oracle that a row closes; None where there is none."""
    means = {row.row.method: statistics.summary(list(row.values[metric])).mean for row in block.rows if row.values}
    baseline, oracle = (means.get(name) for name in table.gap or ("", ""))
    own = means.get(measured.row.method)
    if baseline is None or oracle is None or own is None:
        return None
    gap = baseline - oracle if metric in table.lower else oracle - baseline
    return (own - baseline) / (oracle - baseline) if gap > 0 else None


def _value(table: Table, measured: Measured, metric: str) -> dict[str, Any]:
    values = list(measured.values[metric])
    ours = statistics.summary(values)
    published = measured.row.published.get(metric)
    spread = ours.spread or 0.0
    reached = None
    if published is not None:
        reached = ours.mean - spread <= published if metric in table.lower else ours.mean + spread >= published
    return {
        "mean": ours.mean,
        "sd": ours.spread,
        "values": values,
        "published": published,
        "difference": None if published is None else ours.mean - published,
        "reached": reached,
        "doubts": [doubt.tag for doubt in table.why(measured.row, metric)],
    }


def _step(step: Step) -> dict[str, Any]:
    difference = step.difference
    return {
        "metric": step.metric, "better": step.better, "worse": step.worse,
        "difference": difference.value, "low": difference.low, "high": difference.high,
        "p": difference.p, "p_holm": step.p, "test": difference.test or difference.why,
        "named": step.named, "pairs": step.pairs,
    }  # fmt: skip


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print one table a block, with the metric that methods are compared by; the files have the other metrics."""
    metric = result["compared_by"]
    on = f" on {result['measured_on']}" if result["measured_on"] else ""
    values = [value for row in result["rows"] for value in row["metrics"].values()]
    published = ["published", "difference"] * any(value["published"] is not None for value in values)
    for key, rows in _blocks(result).items():
        columns = ["method", "epochs", "ours", "sd", *published, *_closed_columns(rows, metric), "note"]
        cells = [_cells(row, row["metrics"].get(metric)) | _shares(row, metric) for row in rows]
        shown = [[row.get(name, "") for name in columns] for row in cells]
        console.table(f"{result['id']}, {' '.join(key)}: {metric}{on}", columns, shown)
        for line in [*_order(result, key), *_doubts(rows)]:
            console.say(f"  {line}")
    for why in result["missing"].values():
        console.say(f"Left out: {why}")
    for line in _conditions(result):
        console.say(line)


def markdown(result: Mapping[str, Any]) -> str:
    """The table as Markdown: every metric as ``ours ± sd / published``, the order of the methods, the doubts."""
    lines = [
        f"## {result['id']}: {result['title']}",
        "",
        f"{result['source']}. `{result['command']}`",
        "",
        written(result),
    ]
    if commits := sorted({commit for row in result["rows"] for commit in row["commits"]}):
        lines.append(f"Commits of its runs: {', '.join(commits)}.")
    lines += ["", *_conditions(result)]
    for key, rows in _blocks(result).items():
        metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
        closed = _closed_columns(rows, result["compared_by"])
        cells = []
        for row in rows:
            values = [_both(row["metrics"][name]) if name in row["metrics"] else "" for name in metrics]
            shares = _shares(row, result["compared_by"])
            shown = [*values, *(shares.get(name, "") for name in closed)]
            cells.append([row["method"], _epochs(row), *shown, _note(row, None)])
        columns = ["method", "epochs", *metrics, *closed, "note"]
        lines += ["", f"### {', '.join(key)}", "", markdown_table(columns, cells)]
        lines += ["", *(f"- {line}" for line in [*_order(result, key), *_doubts(rows)])]
        lines += ["", f"{result['compared_by']} by seed:", "", *(f"- {line}" for line in _by_seed(result, rows))]
        if chosen := _selected(rows):
            lines += ["", "Settings selected on validation:", "", *(f"- {line}" for line in chosen)]
    lines += ["", *(f"- Left out: {why}" for why in result["missing"].values())]
    return "\n".join(lines).rstrip()


def as_csv(result: Mapping[str, Any]) -> str:
    """The table as CSV, one line a row and metric, with all digits."""
    numbers = ("mean", "sd", "n", "published", "difference", "reached")
    rows = []
    for row in result["rows"]:
        for metric, value in row["metrics"].items():
            cells = {**value, "n": len(value["values"])}
            about = [*(row[name] for name in result["by"]), row["method"], metric]
            rows.append([*about, *(cells[name] for name in numbers), " ".join(value["doubts"])])
    return csv_text([*result["by"], "method", "metric", *numbers, "doubts"], rows)


def keep(
    result: Mapping[str, Any], texts: Mapping[str, str | bytes], name: str, settings: Settings
) -> tuple[Path, str | None]:
    """Write ``result`` as JSON and the texts by file name, and log them to the MLflow run of that name.

    Returns the folder, and a warning if MLflow could not be reached; the next call tries again.
    """
    folder = settings.home / FOLDER / name
    private_files.make_folder(folder)
    written = {f"{result['id']}.json": json.dumps(result, indent=1), **texts}
    for file, text in written.items():
        (folder / file).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
    return folder, _track(result, [folder / file for file in sorted(written)], folder, settings)


def _track(result: Mapping[str, Any], files: Sequence[Path], folder: Path, settings: Settings) -> str | None:
    if settings.tracking is None:
        return None
    name = folder.name
    note = next((file for file in files if file.suffix == ".md"), None)
    tags = {
        "orchestrator.kind": "reproduction",
        "orchestrator.reproduces": result["source"],
        "orchestrator.selected_on": result["selected_on"],
        **{f"orchestrator.{name}": str(value).lower() for name, value in result["effort"].items()},
        **({"mlflow.note.content": note.read_text(encoding="utf-8")} if note else {}),
    }
    artifacts = store.ensure(settings.tracking, settings.home)
    tracker = Tracker(
        settings.tracking, settings.experiment or result["workload"], name, folder, artifacts=artifacts, resuming=True,
        uid=digest([platform.node(), str(folder.absolute())]),  # others reproduce the same table
    )  # fmt: skip
    tracker.start(name, name, params={"id": result["id"]}, tags=tags)
    tracker.files(name, files)
    tracker.end(name, "FINISHED" if result["complete"] else "FAILED")
    return tracker.close()


BlockKey = tuple[str, ...]


def _blocks(result: Mapping[str, Any]) -> dict[BlockKey, list[dict[str, Any]]]:
    blocks: dict[BlockKey, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        blocks.setdefault(tuple(row[name] for name in result["by"]), []).append(row)
    return blocks


def _cells(row: Mapping[str, Any], value: Mapping[str, Any] | None) -> dict[str, str]:
    def number(name: str, form: str = ".4f") -> str:
        return "" if value is None or value[name] is None else format(value[name], form)

    return {
        "method": row["method"], "epochs": _epochs(row), "ours": number("mean"), "sd": number("sd"),
        "published": number("published"), "difference": number("difference", "+.4f"), "note": _note(row, value),
    }  # fmt: skip


def _epochs(row: Mapping[str, Any]) -> str:
    return "" if row["epochs"] is None else str(row["epochs"])


def _closed_columns(rows: Sequence[Mapping[str, Any]], compared_by: str) -> list[str]:
    """The columns of closed gaps that any row has."""
    return list(dict.fromkeys(name for row in rows for name in _shares(row, compared_by)))


def _shares(row: Mapping[str, Any], compared_by: str) -> dict[str, str]:
    """The shares of the gap that a row closes, by the name of their column."""
    return {
        CLOSED if metric == compared_by else f"{CLOSED}, {metric}": f"{share:.0%}"
        for metric, share in row["closed"].items()
    }


def _note(row: Mapping[str, Any], value: Mapping[str, Any] | None) -> str:
    if row["failure"]:
        return "failed"
    words = [] if value is None or value["reached"] is None else ["reached" if value["reached"] else "not reached"]
    tags = value["doubts"] if value else [doubt.partition(":")[0] for doubt in row["doubts"]]
    return ", ".join([*words, *dict.fromkeys(tags)])


def _both(value: Mapping[str, Any]) -> str:
    spread = "" if value["sd"] is None else f" ± {value['sd']:.4f}"
    return f"{value['mean']:.4f}{spread}" + ("" if value["published"] is None else f" / {value['published']:.4f}")


def _by_seed(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values of each row by seed, ``BPR: 0.41378, 0.41596``; the JSON has the other metrics."""
    metric = result["compared_by"]
    measured = [(row["method"], row["metrics"][metric]["values"]) for row in rows if metric in row["metrics"]]
    return [f"{method}: {', '.join(f'{value:.5f}' for value in values)}" for method, values in measured]


def _selected(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that the search of each row selected, ``BPR: lr=0.0011, weight_decay=1e-06; 6 trials``."""
    lines = []
    for row in rows:
        if row["searched"]:
            chosen = ", ".join(f"{name}={show_value(row['params'][name])}" for name in row["searched"])
            lines.append(f"{row['method']}: {chosen}; {row['trials']} trials")
    return lines


def _order(result: Mapping[str, Any], key: BlockKey) -> list[str]:
    """Lines ``DPL > HCL by 0.0096 (0.0051 to 0.0140), p = 0.0004``, and the published order if it differs."""
    steps = [step for step in result["order"] if tuple(step[name] for name in result["by"]) == key]
    lines = []
    for step in steps:
        interval = "" if step["low"] is None else f" ({step['low']:.4f} to {step['high']:.4f})"
        p = f", p {statistics.p_text(step['p_holm'], '= ')}" if step["p_holm"] is not None else f" ({step['test']})"
        metric = "" if step["metric"] == result["compared_by"] else f"{step['metric']}: "
        lines.append(f"{metric}{step['better']} > {step['worse']} by {step['difference']:.4f}{interval}{p}")
    tests = {step["test"] for step in steps if step["p_holm"] is not None}
    if tests:
        alone = any("paired" in test and "seeds" not in test for test in tests)
        means = f"means of each {result['unit']} over the seeds, " if alone else ""
        lines.append(f"{', '.join(sorted(tests))}; {means}p corrected by Holm{_over(steps)}")
    ours, theirs = (_ranked(result, key, name) for name in ("mean", "published"))
    if len(theirs) > 1 and theirs != [name for name in ours if name in theirs]:
        lines.append(f"published order: {' > '.join(theirs)}")
    return lines


def _over(steps: Sequence[Mapping[str, Any]]) -> str:
    """The pairs that p values are corrected over, and those that were chosen by the tested values."""
    named = max((step["pairs"] for step in steps if step["named"]), default=0)
    chosen = [step for step in steps if not step["named"]]
    if not chosen:
        return ""
    first = chosen[0]
    since = f", from {first['better']} > {first['worse']} on," if named else ""
    before = f" over the {named} named by the source; " if named else ": "
    return f"{before}neighbours{since} were chosen by the same values; theirs is over all {first['pairs']} pairs"


def _ranked(result: Mapping[str, Any], key: BlockKey, by: str) -> list[str]:
    """The rows with a published value, from best to worst by our mean or by the published value."""
    values = {}
    lower = result["compared_by"] in result["lower"]
    for row in _blocks(result)[key]:
        value = row["metrics"].get(result["compared_by"])
        if not row["ours"] and value and value["published"] is not None:
            values[row["method"]] = value[by]
    return sorted(values, key=values.__getitem__, reverse=not lower)


def _doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The failures, searches with failed trials, and doubts, each once with the methods that it is about."""
    about: dict[str, list[str]] = {row["failure"]: [row["method"]] for row in rows if row["failure"]}
    for row in rows:
        if row["failed_trials"]:
            few = f"{row['failed_trials']} of {row['trials']} trials of the search failed"
            about.setdefault(few, []).append(row["method"])
        for doubt in row["doubts"]:
            about.setdefault(doubt, []).append(row["method"])
    return [f"{doubt} ({', '.join(methods) if len(methods) < len(rows) else 'all rows'})"
            for doubt, methods in about.items()]  # fmt: skip


def _conditions(result: Mapping[str, Any]) -> list[str]:
    """Notes on how the values were obtained."""
    budget = result["effort"]
    lines = []
    if budget["quick"]:
        lines.append("Quick: a few epochs, to test that it works. These numbers mean nothing.")
    if budget["as_published"]:
        lines.append(
            "As published: searched rows take the best epoch on test by each metric, an oracle reads the test part; "
            "both make the values too good."
        )
    return lines
