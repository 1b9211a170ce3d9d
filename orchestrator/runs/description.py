"""Names and descriptions of runs and sweeps for MLflow's UI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.config import objectives, user_code, workload_loader
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import show
from orchestrator.registry import intervals
from orchestrator.runs import start_point, worker
from orchestrator.runs.live_view import settings_text

NOTE = "mlflow.note.content"
"""Tag that MLflow's UI shows as the description of a run."""

NAME_CHARACTERS = 60
"""Maximum length of the settings in a run's name."""

METRICS = 6
"""Rows of the table of metrics. MLflow shows all of them elsewhere on the page."""


def run_settings(spec: ExperimentSpec) -> str:
    """The settings of an experiment that are not defaults, such as ``lr=0.01 epochs=5``."""
    params = _given(workload_loader.params(spec.workload), spec.params)
    plan = spec.plan.model_dump(mode="json", exclude_defaults=True, exclude={"decide_at", "refit"})
    seed = {"seed": spec.seed} if spec.seed else {}
    return settings_text({**params, **plan, **seed}) or "defaults"


def _given(model: type[BaseModel], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that have to be given: neither defaults nor what the other parameters imply."""
    whole = model(**params)
    values = whole.model_dump(mode="json", exclude_defaults=True)
    for name in list(values):
        rest = {other: value for other, value in values.items() if other != name}
        with suppress(ValidationError):
            if model(**rest) == whole:
                values = rest
    return values


def sweep_settings(spec: SweepSpec) -> str:
    """The fixed settings of a sweep, by which sweeps differ first, and its space."""
    plan = spec.plan.model_dump(mode="json", exclude_defaults=True, exclude={"decide_at", "refit"})
    return f"{settings_text({**spec.fixed, **plan})} sweep {spec.search.space}".lstrip()


def name(run_id: str, workload: str, settings: str) -> str:
    """Name of a run in MLflow's lists. It begins with what sets the run apart: its settings, or the name it was given.

    ``run_id`` is ``workload`` with date, time and four digits where no name was given.
    """
    stamp = run_id.removeprefix(f"{user_code.label(workload)}-")
    if stamp == run_id:
        return run_id
    cut = settings if len(settings) <= NAME_CHARACTERS else f"{settings[: NAME_CHARACTERS - 3]}..."
    return f"{cut} ({stamp})"


def run_summary(spec: ExperimentSpec) -> str:
    """First sentence of a run's description."""
    return f"Run of `{spec.workload}`: `{run_settings(spec)}`." + _start(spec)


def sweep_summary(spec: SweepSpec, space: Mapping[str, str]) -> str:
    """First part of a sweep's description. ``space``: the searched parameters with their ranges."""
    search = spec.search
    seeds = f", {search.seeds} seeds each" if search.seeds > 1 else ""
    head = f"Search of `{spec.workload}` in the space `{search.space}` ({search.sampler}, {search.scheduler}{seeds})."
    fixed = f" Fixed: `{settings_text(spec.fixed)}`." if spec.fixed else ""
    searched = "\n".join(f"- `{name}`: {ranges}" for name, ranges in space.items())
    return "\n\n".join(filter(None, [head + fixed + _start(spec), searched]))


def _start(spec: ExperimentSpec | SweepSpec) -> str:
    start = start_point.sentence(spec)
    return f" {start}." if start else ""


def unfinished(summary: str, state: str, again: str) -> str:
    """Description of an unfinished run or sweep. ``state``: a sentence; ``again``: the command that resumes it."""
    return "\n\n".join(filter(None, [summary, state, "To continue:", _code([again])]))


def of_run(run_id: str, spec: ExperimentSpec, folder: Path, register: str | None) -> str:
    """Description of a finished run in Markdown, with its outcome in ``folder``."""
    return "\n\n".join([run_summary(spec), *_results(spec, folder), _commands(run_id, register)])


def of_sweep(run_id: str, spec: SweepSpec, space: Mapping[str, str], best: Mapping[str, Any], counts: str,
             winner: ExperimentSpec, folder: Path, register: str | None) -> str:  # fmt: skip
    """Description of a finished sweep in Markdown.

    Args:
        run_id: the sweep's id.
        spec: the sweep.
        space: the searched parameters with their ranges.
        best: number (``trial``) and ``params`` of the winner.
        counts: trials by state.
        winner: the winner's spec.
        folder: the winner's outcome.
        register: name under which the model was registered.
    """
    won = f"Trials: {counts}. Winner: trial {best['trial']}, `{settings_text(best['params'])}`."
    return "\n\n".join([sweep_summary(spec, space), won, *_results(winner, folder), _commands(run_id, register)])


def _results(spec: ExperimentSpec, folder: Path) -> list[str]:
    """Table of the objectives and the first other metrics on validation and test."""
    outcome = worker.outcome_of(folder)
    if outcome is None:
        return []
    values = outcome["metrics"]
    head = [objective.metric for objective in objectives.of_plan(spec.workload, spec.plan)]
    names = list(dict.fromkeys([*head, *(key.partition("/")[2] for key in values)]))
    rows = [_row(each, values, folder / worker.TEST_UNITS) for each in names[: max(METRICS, len(head))]]
    model = "refitted on train + validation" if outcome["refitted"] else "selected on validation"
    table = "\n".join(["| metric | validation | test | 95% interval |", "| --- | ---: | ---: | ---: |", *rows])
    return [table, f"The tested model was {model}, {outcome['epochs']} epochs. Intervals: normal, over test units."]


def _row(metric: str, values: Mapping[str, float], units: Path) -> str:
    test = values.get(f"test/{metric}")
    half = None if test is None else intervals.half_width(units, metric, test)
    interval = "" if half is None or test is None else f"{show(test - half)} to {show(test + half)}"
    return f"| {metric} | {show(values.get(f'validation/{metric}'))} | {show(test)} | {interval} |"


def _commands(run_id: str, register: str | None) -> str:
    promote = [f"orchestrator promote {register} --to champion"] if register else []
    return _code([f"orchestrator reproduce run {run_id}", *promote])


def _code(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```"])
