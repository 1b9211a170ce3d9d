"""Constraints of a search, such as ``ece<=0.05``: samplers learn them, and a trial that violates one never wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import UserError, unknown

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

PARAMETERS, SECONDS = "parameters", "train_seconds"
"""What a trial can be constrained by in addition to its validation metrics: numbers in the served model, and seconds
of training."""

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
                return cls(metric.removeprefix("validation/"), bound, sign == ">=")
        raise UserError("The constraint is not valid", got=repr(text), allowed="METRIC<=NUMBER or METRIC>=NUMBER")

    def violation(self, metrics: Mapping[str, float]) -> float:
        """By how much ``metrics`` violate it; not positive if they do not.

        ``metrics`` are those of the validation split by full name, and the values of :data:`PARAMETERS` and
        :data:`SECONDS`. Raises UserError if the metric is not among them.
        """
        found = {name.removeprefix("validation/"): value for name, value in metrics.items()}
        if self.metric not in found:
            raise unknown("metric of a constraint", self.metric, found)
        return (self.bound - found[self.metric]) if self.at_least else (found[self.metric] - self.bound)

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.at_least else '<='}{self.bound:g}"


def violated(trial: FrozenTrial) -> list[str]:
    """The constraints that a trial violates, as text."""
    return [constraint for constraint, violation in trial.constraints.items() if violation > 0]
