"""A sweep's trials as its folder holds them, running or settled. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cluster import preflight
from orchestrator.config import workload_loader
from orchestrator.config.objectives import chosen
from orchestrator.config.spec import SweepSpec
from orchestrator.errors import UserError
from orchestrator.provenance.record import ENVIRONMENT
from orchestrator.report.statistics import summary
from orchestrator.search import curves
from orchestrator.search.curves import Curve
from orchestrator.search.ranking import ranked
from orchestrator.storage.records import RunFolder
from workloads.contract import Objective

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


def study(folder: RunFolder) -> optuna.Study:
    """The study in the sweep's journal. Raises UserError when there is none yet, or when it is damaged."""
    from orchestrator.search.study import JOURNAL, open_study

    if not (folder.path / JOURNAL).exists():  # Optuna would make it
        raise UserError(f"{folder.id} has no trials", fix=f"See: orchestrator status {folder.id}")
    return open_study(folder.path)


def own(study: optuna.Study) -> list[FrozenTrial]:
    """The sweep's own trials, without those that a warm start took over from others, by number."""
    return [trial for trial in study.get_trials(deepcopy=False) if "warm_from" not in trial.user_attrs]


def spec(folder: RunFolder) -> dict[str, Any]:
    """The spec of a run (an experiment's) or of a sweep, as plain JSON. Raises UserError when the record has none."""
    asked = folder.record["spec"]
    found: dict[str, Any] | None = asked.get("sweep") or asked.get("experiment")
    if found is None:
        raise UserError(f"The record of {folder.id} does not say what was asked for", fix="Restore its record.json")
    return found


def objectives(folder: RunFolder) -> tuple[Objective, ...]:
    """What a run or sweep selects by, the first deciding: as recorded, else as its workload says today.

    Raises UserError when the workload is not known here.
    """
    if known := folder.record.get("objectives"):
        return tuple(Objective(metric, direction) for metric, direction in known)
    asked = tuple(spec(folder)["plan"].get("objective") or ())
    return chosen(workload_loader.code(folder.record["workload"]).objective, asked)


def environment(folder: RunFolder) -> dict[str, Any]:
    """What the run wrote down of its surroundings (``data``: its dataset's fingerprint, ``code``).

    Empty where it is missing or damaged.
    """
    with suppress(OSError, ValueError):
        found = json.loads((folder.path / ENVIRONMENT).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def rows(found: Iterable[FrozenTrial], objectives: Sequence[Objective], seeds: int) -> list[dict[str, Any]]:
    """One flat row a trial: its value by the first objective, all in ``values``, its searched parameters.

    With repeated seeds ``seeds`` has the first objective's value of each, ``spread`` their standard deviation.
    """
    told = []
    for trial in found:
        attributes, complete = trial.user_attrs, trial.state.name == "COMPLETE"
        row = {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.values[0] if complete else attributes.get("best_value"),
        }
        if len(objectives) > 1:
            row["values"] = list(trial.values) if complete else None
        if seeds > 1:
            each = [seed["values"][0] for seed in over_seeds(trial)]
            row |= {"seeds": each, "spread": summary(each).spread if each else None}
        params = attributes.get("params", {})  # PBT's have changed since they were suggested
        told.append(
            row
            | {"epochs": attributes.get("epoch")}
            | {name: attributes.get(name) for name in ("best_epoch", "train_seconds")}
            | {f"params.{name}": params.get(name, value) for name, value in trial.params.items()}
            | {"cause": attributes.get("cause")}
        )
    return told


def over_seeds(trial: FrozenTrial) -> list[dict[str, Any]]:
    """What each seed of a repeated configuration gave, as far as they have ended; empty where there is one seed."""
    names = (f"seed_{number}" for number in range(len(trial.user_attrs)))
    return [trial.user_attrs[name] for name in names if name in trial.user_attrs]


def learning_curves(folder: Path, found: list[FrozenTrial], metric: str) -> dict[tuple[int, int], Curve]:
    """(trial, seed) -> the values of ``metric`` on validation by epoch; only the rungs' where no curves were kept."""
    kept = curves.read(folder, f"validation/{metric}")
    return kept or {(t.number, 0): sorted(t.intermediate_values.items()) for t in found if t.intermediate_values}


def best(folder: RunFolder, found: Iterable[FrozenTrial], objective: Objective) -> FrozenTrial | None:
    """The winner: as the sweep settled it, else the best so far; None while no trial is complete."""
    order = ranked(found, objective)
    settled = (folder.record.get("result") or {}).get("best_trial")
    return next((trial for trial in order if trial.number == settled), order[0] if order else None)


def command(folder: RunFolder, trial: FrozenTrial) -> str:
    """The command that repeats a trial, with its first seed."""
    asked, params = SweepSpec.model_validate(spec(folder)), trial.user_attrs["params"]
    with suppress(UserError):  # a workload that is not here, or has changed since: its defaults are not known
        params = preflight.parameters(asked.workload, params)
    return asked.trial(trial.user_attrs.get("seed_of", trial.number), params).command()
