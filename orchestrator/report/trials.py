"""What the views show of a sweep's trials, running or finished. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cluster import preflight
from orchestrator.config.spec import SweepSpec, parse
from orchestrator.errors import UserError
from orchestrator.report.statistics import summary
from orchestrator.search import curves, recorded
from orchestrator.search.constraints import violated
from orchestrator.search.curves import Curve
from orchestrator.search.members import LINEAGE
from orchestrator.search.ranking import REPEAT, ranked, repeats, seed_results
from orchestrator.search.selection import Selection, of_sweep
from orchestrator.storage import commands
from orchestrator.storage.records import RunFolder
from workloads.contract import Objective

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def rows(trials: Sequence[FrozenTrial], objectives: Sequence[Objective], seeds: int) -> list[dict[str, Any]]:
    """One flat row a trial: the first objective as ``value``, all objectives as ``values``, the searched parameters.

    ``violates`` names the violated constraints of a search that has some.
    With repeated seeds, and for finalists, ``seeds`` has the first objective's value of each seed, ``value`` their mean
    and ``spread`` their standard deviation.
    """
    flat = []
    again = [trial for trial in trials if REPEAT in trial.user_attrs]
    for trial in trials:
        attributes = trial.user_attrs
        complete = trial.state.name == "COMPLETE"
        row = {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.values[0] if complete else attributes.get("best_value"),
        }
        if len(objectives) > 1:
            row["values"] = list(trial.values) if complete else None
        if REPEAT in attributes:
            row[REPEAT] = attributes[REPEAT]
        if trial.constraints:
            row["violates"] = ", ".join(violated(trial, repeats(again, trial))) or None
        if seeds > 1:
            each = seed_values(trial)
            row |= {"seeds": each, "spread": summary(each).spread if each else None}
        elif len(each := seed_values(trial, again)) > 1:  # of a finalist
            over = summary(each)
            row |= {"value": over.mean, "seeds": each, "spread": over.spread}
        params = attributes.get("params", {})  # PBT changes parameters after they were suggested
        flat.append(
            row
            | {"epochs": attributes.get("epoch")}
            | {name: attributes.get(name) for name in ("best_epoch", "train_seconds")}
            | {name: attributes[name] for name in ("accumulate",) if name in attributes}
            | {f"params.{name}": params.get(name, value) for name, value in trial.params.items()}
            | {"cause": attributes.get("cause")}
        )
    return flat


def over_seeds(trial: FrozenTrial, trials: Iterable[FrozenTrial] = ()) -> list[dict[str, Any]]:
    """The results of the finished seeds of a configuration, among ``trials`` the repeats of a finalist; else empty."""
    own = seed_results(trial)
    further = repeats(trials, trial)
    return own or [each.user_attrs for each in (trial, *further)] if further or own else []


def seed_values(trial: FrozenTrial, trials: Iterable[FrozenTrial] = ()) -> list[float]:
    """The first objective's value of each seed of a complete configuration; see :func:`over_seeds`."""
    return [seed["values"][0] if "values" in seed else seed["best_value"] for seed in over_seeds(trial, trials)]


def learning_curves(folder: Path, trials: list[FrozenTrial], metric: str) -> dict[tuple[int, int], Curve]:
    """(trial, seed) -> values of ``metric`` on validation by epoch; without recorded curves only those at rungs."""
    every = curves.read(folder, f"validation/{metric}")
    return every or {(t.number, 0): sorted(t.intermediate_values.items()) for t in trials if t.intermediate_values}


def best(
    folder: RunFolder, trials: Iterable[FrozenTrial], objective: Objective, chosen: Selection | None = None
) -> FrozenTrial | None:
    """The winner of a finished sweep, else the best trial so far; None if no trial is complete.

    The best so far is that of ``chosen``, if given, else the one with the best value.
    """
    order = ranked(trials, objective)
    settled = folder.result().get("best_trial", chosen and chosen.best)
    return next((trial for trial in order if trial.number == settled), order[0] if order else None)


def selection(folder: RunFolder) -> Selection | None:
    """The best trial of a sweep and those that cannot be separated from it. None if no trial is complete."""
    return of_sweep(folder.path, recorded.trials(folder), recorded.objectives(folder)[0])


def command(folder: RunFolder, trial: FrozenTrial) -> str:
    """The command that repeats a trial, with its first seed, or the sweep of a member that took over from others."""
    if LINEAGE in trial.user_attrs:
        return commands.for_run(folder.path, "reproduce run")
    sweep = parse(SweepSpec, recorded.spec(folder), folder.id)
    params = trial.user_attrs["params"]
    with suppress(UserError):  # the defaults are unknown if the workload is not installed or has changed
        params = preflight.parameters(sweep.workload, params)
    return sweep.trial(trial.user_attrs.get("seed_of", trial.number), params).command()
