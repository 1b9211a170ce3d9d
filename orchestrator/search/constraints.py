"""Constraints of a search, such as ``ece<=0.05``: samplers learn them, and a trial that violates one never wins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError, unknown

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

PARAMETERS, LATENCY, SECONDS = "parameters", "latency_ms", "train_seconds"
"""What a trial can be constrained by in addition to its validation metrics: numbers in the served model, milliseconds
of a call of it, and seconds of training."""

OF_MODEL = (PARAMETERS, LATENCY)
"""Those that are measured only if a constraint names them."""

LEARNT_BY = ("tpe", "gp")
"""Samplers that learn constraints."""

_ALIASES = {"params": PARAMETERS}

_FORM = re.compile(r"\s*([A-Za-z_][\w@./-]*)\s*(<=|>=)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Constraint:
    """``metric`` is at most ``bound``, or at least ``bound`` if ``at_least``."""

    metric: str
    bound: float
    at_least: bool

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """``METRIC<=NUMBER`` or ``METRIC>=NUMBER``. Raises UserError."""
        if form := _FORM.fullmatch(text):
            metric, sign, number = form.groups()
            try:
                bound = float(number)
            except ValueError:
                bound = float("nan")
            if bound == bound:
                metric = metric.removeprefix("validation/")
                return cls(_ALIASES.get(metric, metric), bound, sign == ">=")
        raise UserError("The constraint is not valid", got=repr(text), allowed="METRIC<=NUMBER or METRIC>=NUMBER")

    def violation(self, metrics: Mapping[str, float]) -> float:
        """By how much ``metrics`` violate it; not positive if they do not.

        ``metrics`` are those of the validation split by full name, and the values of :data:`OF_MODEL` and
        :data:`SECONDS`. Raises UserError if the metric is not among them.
        """
        values = {name.removeprefix("validation/"): value for name, value in metrics.items()}
        if self.metric not in values:
            raise unknown("metric of a constraint", self.metric, values)
        return (self.bound - values[self.metric]) if self.at_least else (values[self.metric] - self.bound)

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.at_least else '<='}{self.bound:g}"


def unknown_metric(constraints: Iterable[Constraint], metrics: Iterable[str]) -> UserError | None:
    """The error of a constraint by a metric that validation does not have.

    ``metrics`` are the full names of one epoch. None if the epoch was not evaluated.
    """
    names = [name.removeprefix("validation/") for name in metrics if name.startswith("validation/")]
    if names:
        for constraint in constraints:
            if constraint.metric not in (*names, *OF_MODEL, SECONDS):
                return unknown("metric of a constraint", constraint.metric, [*names, *OF_MODEL, SECONDS])
    return None


def violations(constraints: Iterable[Constraint], attributes: Mapping[str, Any]) -> dict[str, float]:
    """By how much the result of a trial violates each constraint. Raises UserError for a metric that it lacks."""
    measured = {name: attributes[name] for name in (*OF_MODEL, SECONDS) if attributes.get(name) is not None}
    metrics = {**attributes["best_metrics"], **measured}
    return {str(constraint): constraint.violation(metrics) for constraint in constraints}


def violated(trial: FrozenTrial, repeats: Sequence[FrozenTrial] = ()) -> list[str]:
    """The constraints that a trial violates, as text; of a finalist those that its mean over ``repeats`` violates."""
    runs = [trial.constraints, *(repeat.constraints for repeat in repeats)]
    return [constraint for constraint in runs[0] if fmean(run[constraint] for run in runs) > 0]
