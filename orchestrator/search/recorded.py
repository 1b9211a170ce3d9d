"""Read what a sweep's folder records of its search: spec, objectives and trials. Nothing here writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.config import workload_loader
from orchestrator.config.objectives import of_workload
from orchestrator.errors import UserError
from orchestrator.search import members
from orchestrator.storage import commands
from orchestrator.storage.records import RunFolder
from workloads.contract import Objective

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


def study(folder: RunFolder, *, summary: bool = False) -> optuna.Study:
    """The study in the sweep's journal. Raises UserError when it does not exist yet or is damaged.

    With ``summary`` its trials lack their parameters and values at epochs: a large study is opened four times as fast.
    """
    from orchestrator.search.journal import JOURNAL, open_study

    if not (folder.path / JOURNAL).exists():  # Optuna would create it
        raise UserError(f"{folder.id} has no trials", fix=f"See: {commands.for_run(folder.path, 'status')}")
    return open_study(folder.path, summary=summary)


def own(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of the sweep by number, without those that a warm start added from other sweeps."""
    return [trial for trial in study.get_trials(deepcopy=False) if "warm_from" not in trial.user_attrs]


def trials(folder: RunFolder, *, summary: bool = False) -> list[FrozenTrial]:
    """The sweep's own trials by number, those of a population with their present parameters.

    Arguments and errors as of :func:`study`.
    """
    return members.with_present_params(own(study(folder, summary=summary)))


def spec(folder: RunFolder) -> dict[str, Any]:
    """The spec of a run or sweep as plain JSON. Raises UserError when the record has none."""
    request = folder.record["spec"]
    values: dict[str, Any] | None = request.get("sweep") or request.get("experiment")
    if values is None:
        raise UserError(f"The record of {folder.id} has no spec", fix="Restore its record.json")
    return values


def objectives(folder: RunFolder) -> tuple[Objective, ...]:
    """The objectives of a run or sweep, the selecting one first: as recorded, else those of its workload.

    Raises UserError when the workload is not installed.
    """
    if pairs := folder.record.get("objectives"):
        return tuple(Objective(metric, direction) for metric, direction in pairs)
    names = tuple(spec(folder)["plan"].get("objective") or ())
    return of_workload(workload_loader.code(folder.record["workload"]), names)
