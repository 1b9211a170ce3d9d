"""The objectives of a run or sweep: those of the workload, or those given with ``objective=``."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.errors import UserError, unknown
from workloads.contract import Objective, Workload


class Unreported(UserError):
    """Validation does not report an objective; this holds for every trial, whatever its parameters."""


def of_plan(workload: str, plan: Plan) -> tuple[Objective, ...]:
    """The objectives of a run of ``workload`` with ``plan``. Loads the workload's code. Raises UserError."""
    return of_workload(workload_loader.code(workload), plan.objective)


def of_workload(workload: Workload | type[Workload], names: tuple[str, ...]) -> tuple[Objective, ...]:
    """The objectives of a workload, or those that ``names`` gives; see :func:`chosen`."""
    return chosen(workload.objective, names, getattr(workload, "directions", {}))


def direction_of(metric: str, declared: Mapping[str, str]) -> str | None:
    """The better direction of a metric: that of its name, or of a pattern that it matches; None if undeclared."""
    matching = (direction for pattern, direction in declared.items() if fnmatchcase(metric, pattern))
    return declared.get(metric) or next(matching, None)


def chosen(
    own: Objective | tuple[Objective, ...], names: tuple[str, ...], declared: Mapping[str, str] | None = None
) -> tuple[Objective, ...]:
    """The objectives to use: ``own``, those of the workload, unless ``names`` gives others. The first selects epochs.

    Each of ``names`` is ``METRIC:min`` or ``METRIC:max`` of validation, or ``METRIC`` if the workload defines its
    direction, by ``own`` or for further metrics by ``declared``. METRIC may have the prefix ``validation/``. Raises
    UserError for a direction that is missing, unknown, or not the declared one.
    """
    own = own if isinstance(own, tuple) else (own,)
    declared = declared or {}
    if not names:
        return own
    directions = {**declared, **{objective.metric: objective.direction for objective in own}}
    objectives = []
    for text in names:
        metric, colon, direction = text.partition(":")
        if not metric:
            raise UserError("An objective has no name", got=repr(text), allowed="METRIC, METRIC:min or METRIC:max")
        metric = metric.removeprefix("validation/")
        if metric.startswith("test/"):
            raise UserError(
                "An objective is a metric of the validation split: test must not affect choices",
                got=repr(text), allowed=text.partition("/")[2],
            )  # fmt: skip
        better = direction_of(metric, directions)
        if not colon and better is None:
            raise _undeclared(metric, own)
        if colon and direction not in ("min", "max"):
            raise UserError(
                f"The direction of the objective {metric} is not valid", got=repr(text),
                allowed=f"{metric}:max or {metric}:min",
            )  # fmt: skip
        if colon and better not in (None, direction):
            raise UserError(
                f"The better direction of {metric} is {better}", got=repr(text), allowed=f"{metric}:{better}"
            )  # fmt: skip
        objectives.append(
            Objective(
                metric,
                direction or better,  # type: ignore[arg-type]
                refit=own[0].refit,
                test_epochs=own[0].test_epochs,
            )
        )
    if len({objective.metric for objective in objectives}) < len(objectives):
        raise UserError("An objective is named twice", got=", ".join(names))
    return tuple(objectives)


def _undeclared(metric: str, own: tuple[Objective, ...]) -> UserError:
    """The error for a metric without a direction. Which metrics exist is known at the first evaluation only."""
    defaults = "default is" if len(own) == 1 else "defaults are"
    return UserError(
        f"The objective {metric} is not declared by the workload, "
        f"whose {defaults} {', '.join(objective.metric for objective in own)}",
        fix=f"For another metric of validation give the direction: {metric}:max or {metric}:min; "
        "the name is checked at the first evaluation",
    )


def value(objective: Objective, metrics: Mapping[str, float]) -> float:
    """The objective's value among ``validation/...`` metrics. Raises :class:`Unreported` when it is missing."""
    name = f"validation/{objective.metric}"
    if name not in metrics:
        reported = [key.removeprefix("validation/") for key in metrics if key.startswith("validation/")]
        error = unknown("objective: validation does not report it", objective.metric, reported, Unreported)
        if error.fix is None and reported:
            fix = "Name another, with its direction: objective=METRIC:max or objective=METRIC:min"
            error = Unreported(error.what, got=error.got, allowed=error.allowed, fix=fix)
        raise error
    return metrics[name]
