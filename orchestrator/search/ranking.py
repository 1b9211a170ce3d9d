"""Rank the complete trials of a sweep by one objective or by several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.search.constraints import violated
from workloads.contract import Objective

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


REPEAT = "repeat_of"
"""Attribute of a trial that repeats a finalist: its number. A repeat never wins; its values count for the finalist."""


def repeats(trials: Iterable[FrozenTrial], trial: FrozenTrial) -> list[FrozenTrial]:
    """The complete repeats of a finalist with other seeds."""
    return [t for t in trials if t.state.name == "COMPLETE" and t.user_attrs.get(REPEAT) == trial.number]


def seed_results(trial: FrozenTrial) -> list[dict[str, Any]]:
    """The result of each finished seed of a trial with repeated seeds, in their order; else empty."""
    names = (f"seed_{number}" for number in range(len(trial.user_attrs)))
    return [trial.user_attrs[name] for name in names if name in trial.user_attrs]


def ranked(trials: Iterable[FrozenTrial], objective: Objective) -> list[FrozenTrial]:
    """The complete trials that violate no constraint, the best by ``objective`` (their first value) first.

    A finalist violates those that the mean over its runs violates. Ties go to the earlier trial.
    """
    sign = _sign(objective)
    return sorted(_complete(trials), key=lambda trial: (-sign * float(trial.values[0]), trial.number))


def front(trials: Iterable[FrozenTrial], objectives: Sequence[Objective]) -> list[FrozenTrial]:
    """The Pareto front: of the complete trials that violate no constraint those that no other one dominates.

    The best in the first objective is the first.

    A trial dominates another if it is at least as good in every objective and better in one.
    """
    signs = [_sign(objective) for objective in objectives]
    complete = _complete(trials)
    gains = {t.number: [sign * value for sign, value in zip(signs, t.values)] for t in complete}

    def dominates(one: FrozenTrial, other: FrozenTrial) -> bool:
        mine = gains[one.number]
        theirs = gains[other.number]
        return mine != theirs and all(m >= t for m, t in zip(mine, theirs))

    optimal: list[FrozenTrial] = []
    for trial in sorted(complete, key=lambda t: ([-gain for gain in gains[t.number]], t.number)):
        if not any(dominates(other, trial) for other in optimal):  # only an earlier trial can
            optimal.append(trial)
    return optimal


def _sign(objective: Objective) -> float:
    return 1.0 if objective.direction == "max" else -1.0


def _complete(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """The complete trials that may win: no repeats, and none that violates a constraint."""
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    again = [trial for trial in complete if REPEAT in trial.user_attrs]
    first = (trial for trial in complete if REPEAT not in trial.user_attrs)
    return [trial for trial in first if not violated(trial, repeats(again, trial))]
