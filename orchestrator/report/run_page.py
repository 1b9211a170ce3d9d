"""The HTML page of a run or a sweep: the request, the result, the search, the cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from optuna.trial import FrozenTrial

from orchestrator.config.plan import Plan
from orchestrator.console import duration, show
from orchestrator.provenance.record import recorded_environment
from orchestrator.report import plots, trials
from orchestrator.report.figures import of_sweep as draw
from orchestrator.report.html import Plot, Section, Table, render
from orchestrator.report.statistics import summary
from orchestrator.runs import plot_style
from orchestrator.search import recorded, winners
from orchestrator.search.selection import Selection
from orchestrator.storage import history, usage_log
from orchestrator.storage.names import TABLES
from orchestrator.storage.records import RunFolder

CAPTIONS = {
    "pareto": "Pareto front: where no complete trial is better in every objective",
    "history": "Optimization history",
    "learning": "Learning curves",
    "seeds": "The winner's seeds",
    "parallel": "Parallel coordinates of the complete trials: darker blue is better, the winner is orange, dotted ones "
    "violate a constraint",
    "importance": "Parameter importance",
}

Rows = Sequence[Mapping[str, Any]]


def of_sweep(folder: RunFolder, rows: Rows, drawn: Mapping[str, Figure | str] | None = None) -> str:
    """The page of a sweep, running or finished; ``rows`` are its trials. Raises UserError if there are none yet."""
    drawn = draw(folder) if drawn is None else drawn
    all_trials = recorded.trials(folder)
    sections = [
        Section("Request", request(folder), folder.record["command"], tables=[_space(all_trials)]),
        _winner(folder, all_trials),
        *(_measured(folder.path / "winner") if folder.result() else []),
        Section(
            "The search",
            plots=[_plot(figure, CAPTIONS[name]) for name, figure in drawn.items() if not isinstance(figure, str)],
            notes=[reason for reason in drawn.values() if isinstance(reason, str)],
        ),
        _trials(folder, rows),
        *_failures(rows),
        costs([folder]),
    ]
    return render(folder.id, subtitle(folder), sections)


def of_run(folder: RunFolder) -> str:
    """The page of one run."""
    objective = recorded.objectives(folder)[0]
    values = curve(folder.path, f"validation/{objective.metric}")
    drawn = (
        [Plot(plot_style.svg(plots.learning({"": values}, "", objective), "learning"), "Learning curve")]
        if values
        else []
    )
    record = folder.record
    facts = {"saved model": (record.get("result") or {}).get("model_uri"), "error": record.get("error")}
    sections = [
        Section("Request", request(folder), record["command"]),
        Section("Result", facts, plots=drawn, tables=_metrics(folder.path, objective.metric)),
        *_measured(folder.path),
        costs([folder]),
    ]
    return render(folder.id, subtitle(folder), sections)


def subtitle(folder: RunFolder) -> str:
    """Kind, workload, status, start time and duration."""
    record = folder.record
    status = folder.status()
    started = datetime.fromisoformat(record["started"])
    ended = datetime.fromisoformat(record["ended"]) if record.get("ended") else datetime.now(UTC)
    took = f", {duration((ended - started).total_seconds())}" if status != "lost" else ""
    return f"{record['kind']} of {record['workload']}, {status}, {started:%Y-%m-%d %H:%M} UTC{took}"


def request(folder: RunFolder) -> dict[str, Any]:
    """The request as names and texts: parameters, plan, search, seeds, data, code, person."""
    spec = recorded.spec(folder)
    environment = recorded_environment(folder.path)
    defaults = Plan().model_dump(mode="json")
    plan = {k: v for k, v in spec["plan"].items() if k == "epochs" or (k != "decide_at" and v != defaults.get(k))}
    search = {k: v for k, v in spec.get("search", {}).items() if v not in (None, [])}
    code = environment.get("code", {})
    dirty = code.get("mlflow.source.git.dirty") == "true"
    return {
        "by": folder.record.get("user"),
        "objective": ", ".join(f"{o.metric} ({o.direction}) on validation" for o in recorded.objectives(folder)),
        "fixed parameters" if "search" in spec else "parameters": _pairs(spec.get("fixed") or spec.get("params") or {}),
        "plan": _pairs(plan),
        "search": _pairs(search),
        "seed": str(spec["seed"]),
        "devices": _pairs(spec["resources"]),
        "data": environment.get("data"),
        "code": code.get("mlflow.source.git.commit", "") + (" with uncommitted changes" if dirty else ""),
    }


def costs(folders: Sequence[RunFolder]) -> Section:
    """The device hours of runs and sweeps."""
    rows, silent = usage_log.table(folders, "sweep")
    table = Table(
        ["run or sweep", "GPU hours", "CPU hours"], [[r["sweep"], r["gpu_hours"], r["cpu_hours"]] for r in rows]
    )
    note = "Devices count while they are reserved, idle or not."
    missing = f"{silent} of {len(folders)} has no account." if silent else ""
    return Section("Accounts", tables=[table] if rows else [], notes=[n for n in (note if rows else "", missing) if n])


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """A run's values of ``name`` by epoch; a resume may repeat rows, the last ones count."""
    return sorted({row["epoch"]: row[name] for row in history.read(folder) if name in row}.items())


def _space(all_trials: Sequence[FrozenTrial]) -> Table:
    """The searched parameters with their ranges."""
    distributions = {name: d for trial in all_trials for name, d in trial.distributions.items()}
    rows = []
    for name, d in distributions.items():
        choices = getattr(d, "choices", None)
        text = ", ".join(map(str, choices)) if choices else f"{show(d.low)} to {show(d.high)}"
        step = getattr(d, "step", None)
        scale = "choice" if choices else "logarithmic" if d.log else f"step {show(step)}" if step else "linear"
        rows.append([name, text, scale])
    return Table(["searched", "range", "scale"], rows)


def _winner(folder: RunFolder, all_trials: Sequence[FrozenTrial]) -> Section:
    objectives = recorded.objectives(folder)
    selection = trials.selection(folder)
    best = trials.best(folder, all_trials, objectives[0], selection)
    if best is None:
        return Section("The winner", notes=["No trial is complete."])
    result = folder.result()
    seeds = [seed["best_metrics"] for seed in trials.over_seeds(best, all_trials)]
    values = {}
    for objective, value in zip(objectives, best.values):
        over = summary([seed[f"validation/{objective.metric}"] for seed in seeds] or [value])
        spread = f" (mean of {over.n} seeds, sd {over.spread:.2g})" if over.spread is not None else ""
        values[f"{objective.metric} on validation"] = show(over.mean) + spread
    if selection and (estimate := selection.estimate(best.number)):
        values["estimate"] = estimate.text().removeprefix("estimate ")
    settled = "best_trial" in result
    return Section(
        "The winner" if settled else "The best so far",
        {"trial": str(best.number), **values, **best.params, "saved model": result.get("model_uri")},
        trials.command(folder, best),
        tables=_metrics(folder.path / "winner", objectives[0].metric) if settled else [],
        notes=_opened(folder) if settled else [_unopened(folder)],
    )


def _unopened(folder: RunFolder) -> str:
    if winners.tested(folder):
        return "The test split was opened for an earlier winner. It is opened again if another trial wins."
    return "The test split is opened once, at the end of the sweep."


def _opened(folder: RunFolder) -> list[str]:
    """A note if the test split was opened for more than one model."""
    count = len(winners.tested(folder))
    note = f"The test split was opened for {count} models: after its end the sweep was continued, to another winner."
    return [note] if count > 1 else []


def _measured(folder: Path) -> list[Section]:
    """The plots of tables from the evaluation on test; empty if there are none."""
    from orchestrator.runs.table_plots import figures

    drawn = [_plot(figure, name.replace("_", " ")) for name, figure in figures(folder / TABLES).items()]
    return [Section("Measured on test", plots=drawn)] if drawn else []


def _metrics(folder: Path, objective: str) -> list[Table]:
    """Table of the validation and test values of an outcome, the objective first."""
    from orchestrator.runs.worker import outcome_of

    if (outcome := outcome_of(folder)) is None:
        return []
    values = outcome["metrics"]
    metrics = dict.fromkeys(name.partition("/")[2] for name in values)
    names = sorted(metrics, key=lambda name: name != objective)
    test = "test (refitted on train + validation)" if outcome["refitted"] else "test"
    rows = [[name, values.get(f"validation/{name}"), values.get(f"test/{name}")] for name in names]
    return [Table(["metric", "validation (best epoch)", test], rows, 0 if objective in metrics else None)]


def _plot(figure: Figure, caption: str) -> Plot:
    return Plot(plot_style.svg(figure, caption), caption, wide=figure.get_size_inches()[0] > plot_style.WIDTH)


def _trials(folder: RunFolder, rows: Rows) -> Section:
    if folder.status() != "running":  # then no driver ends such a trial, as status says
        rows = [{**row, "state": "interrupted"} if row["state"] == "running" else row for row in rows]
    objectives = recorded.objectives(folder)
    if len(objectives) > 1:  # one column each
        rows = [_apart(row, [objective.metric for objective in objectives]) for row in rows]
    selection = trials.selection(folder)
    if selection and selection.estimates:
        rows = [_estimated(row, selection) for row in rows]
    left_out = {"cause"} if any(row.get("violates") for row in rows) else {"cause", "violates"}
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in left_out]
    best = trials.best(folder, recorded.trials(folder), objectives[0], selection)
    marked = [i for i, row in enumerate(rows) if best is not None and row["trial"] == best.number]
    values = [[_cell(row.get(name)) for name in names] for row in rows]
    table = Table([name.removeprefix("params.") for name in names], values, marked[0] if marked else None)
    note = "Values are of the validation split; for a trial that was stopped early its best value until then."
    return Section("Trials", tables=[table], notes=[note, *([f"{selection.text()}."] if selection else [])])


def _failures(rows: Rows) -> list[Section]:
    """Failed trials by cause, the most frequent first."""
    causes: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.get("cause"):
            causes[row["cause"]].append(row["trial"])
    if not causes:
        return []
    order = sorted(causes.items(), key=lambda item: -len(item[1]))
    cells = [[len(numbers), cause, ", ".join(map(str, numbers))] for cause, numbers in order]
    return [Section("Failures", tables=[Table(["trials", "cause", "numbers"], cells)])]


def _apart(row: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    """A trial's row with one column for each objective."""
    values = row["values"] or [row["value"], *[None] * (len(metrics) - 1)]
    head = {"trial": row["trial"], "state": row["state"], **dict(zip(metrics, values))}
    return head | {name: value for name, value in row.items() if name not in (*head, "value", "values")}


def _estimated(row: Mapping[str, Any], selection: Selection) -> dict[str, Any]:
    """A trial's row with its estimate and standard errors in front of its epochs."""
    one = selection.estimate(row["trial"])
    shown = {
        "estimate": one and one.value,
        "se (units)": one and one.units_error,
        "se (seeds)": one and one.seeds_error,
    }
    errors = {name: value for name, value in shown.items() if value is not None}
    names = list(row)
    head = names[: names.index("epochs")]
    return {name: row[name] for name in head} | errors | {name: row[name] for name in names[len(head) :]}


def _cell(value: Any) -> Any:
    return " ".join(map(show, value)) if isinstance(value, list | tuple) else value


def _pairs(values: Mapping[str, Any]) -> str:
    texts = {name: str(value).lower() if isinstance(value, bool) else show(value) for name, value in values.items()}
    return "  ".join(f"{name}={text}" for name, text in texts.items() if values[name] is not None)
