"""What a run or sweep selects by: the workload's own objectives, or those that ``objective=`` names instead."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.errors import UserError, unknown
from workloads.contract import Objective


class Unreported(UserError):
    """Validation does not report an objective: so it is in every trial, whatever its parameters."""


def of(workload: str, plan: Plan) -> tuple[Objective, ...]:
    """The objectives of a run of ``workload`` by ``plan``; loads the workload's code. Raises UserError."""
    return chosen(workload_loader.code(workload).objective, plan.objective)


def chosen(own: Objective | tuple[Objective, ...], asked: tuple[str, ...]) -> tuple[Objective, ...]:
    """The objectives in force; the first one selects epochs.

    ``asked`` are validation metrics, ``METRIC`` where the workload itself knows the direction, else ``METRIC:min``
    or ``METRIC:max``. Raises UserError for a direction that is missing or unknown.
    """
    own = own if isinstance(own, tuple) else (own,)
    if not asked:
        return own
    known = {objective.metric: objective for objective in own}
    found = []
    for text in asked:
        metric, colon, direction = text.partition(":")
        if not metric:
            raise UserError("An objective has no name", got=repr(text), allowed="METRIC, METRIC:min or METRIC:max")
        if direction not in ("min", "max") if colon else metric not in known:
            raise UserError(
                f"The objective {metric} needs a direction",
                got=repr(text),
                allowed=f"{metric}:max, {metric}:min, or {', '.join(known)}",
            )
        own_direction = known[metric].direction if metric in known else None
        found.append(
            Objective(
                metric,
                direction or own_direction,  # type: ignore[arg-type]
                refit=own[0].refit,
                test_epochs=own[0].test_epochs,
            )
        )
    if len({objective.metric for objective in found}) < len(found):
        raise UserError("An objective is named twice", got=", ".join(asked))
    return tuple(found)


def value(objective: Objective, metrics: Mapping[str, float]) -> float:
    """The objective's value among ``validation/...`` metrics. Raises :class:`Unreported` when it is not there."""
    name = f"validation/{objective.metric}"
    if name not in metrics:
        known = [key.removeprefix("validation/") for key in metrics if key.startswith("validation/")]
        raise unknown("objective: validation does not report it", objective.metric, known, Unreported)
    return metrics[name]
