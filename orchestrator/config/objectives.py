"""The objectives of a run or sweep: those of the workload, or those given with ``objective=``."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.errors import UserError, unknown
from workloads.contract import Objective


class Unreported(UserError):
    """Validation does not report an objective; this holds for every trial, whatever its parameters."""


def of(workload: str, plan: Plan) -> tuple[Objective, ...]:
    """The objectives of a run of ``workload`` with ``plan``. Loads the workload's code. Raises UserError."""
    return chosen(workload_loader.code(workload).objective, plan.objective)


def chosen(own: Objective | tuple[Objective, ...], names: tuple[str, ...]) -> tuple[Objective, ...]:
    """The objectives to use: ``own``, those of the workload, unless ``names`` gives others. The first selects epochs.

    Each of ``names`` is ``METRIC:min`` or ``METRIC:max`` of validation, or ``METRIC`` if the workload defines its
    direction. Raises UserError for a direction that is missing or unknown.
    """
    own = own if isinstance(own, tuple) else (own,)
    if not names:
        return own
    own_by_metric = {objective.metric: objective for objective in own}
    objectives = []
    for text in names:
        metric, colon, direction = text.partition(":")
        if not metric:
            raise UserError("An objective has no name", got=repr(text), allowed="METRIC, METRIC:min or METRIC:max")
        if direction not in ("min", "max") if colon else metric not in own_by_metric:
            raise UserError(
                f"The objective {metric} needs a direction",
                got=repr(text),
                allowed=f"{metric}:max, {metric}:min, or {', '.join(own_by_metric)}",
            )
        own_direction = own_by_metric[metric].direction if metric in own_by_metric else None
        objectives.append(
            Objective(
                metric,
                direction or own_direction,  # type: ignore[arg-type]
                refit=own[0].refit,
                test_epochs=own[0].test_epochs,
            )
        )
    if len({objective.metric for objective in objectives}) < len(objectives):
        raise UserError("An objective is named twice", got=", ".join(names))
    return tuple(objectives)


def value(objective: Objective, metrics: Mapping[str, float]) -> float:
    """The objective's value among ``validation/...`` metrics. Raises :class:`Unreported` when it is missing."""
    name = f"validation/{objective.metric}"
    if name not in metrics:
        reported = [key.removeprefix("validation/") for key in metrics if key.startswith("validation/")]
        raise unknown("objective: validation does not report it", objective.metric, reported, Unreported)
    return metrics[name]
