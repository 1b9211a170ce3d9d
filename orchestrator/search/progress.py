"""Progress of a search, computed from its trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.search.ranking import REPEAT

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from workloads.contract import Objective


def is_additional(trial: FrozenTrial) -> bool:
    """Whether a trial is not one of those that the sweep was asked for: a retry, added while it ran, or a repeat."""
    return any(name in trial.user_attrs for name in ("retry_of", "request", REPEAT))


def target(requested: int, trials: Iterable[FrozenTrial]) -> int:
    """Total number of trials of a sweep: the ``requested`` ones, and the additional ones among its ``trials``."""
    return requested + sum(map(is_additional, trials))


def search_progress(
    trials: Sequence[FrozenTrial], target: int, objective: Objective, winner: FrozenTrial | None
) -> dict[str, Any]:
    """Trials by state, their ``target``, the ``best``, and ``seconds_left`` where they can be estimated.

    Args:
        trials: trials of the search in any state.
        target: total number of trials.
        objective: objective of the search.
        winner: the best trial so far.
    """
    best = None if winner is None else {"trial": winner.number, objective.metric: winner.values[0]}
    return {
        "trials": dict(Counter(trial.state.name.lower() for trial in trials)),
        "target": target,
        "best": best,
        "seconds_left": _seconds_left(trials, target),
    }


def _seconds_left(trials: Sequence[FrozenTrial], target: int) -> float | None:
    """Usual seconds of a trial times the remaining trials, divided by the number that run at once.

    None without an ended or a running trial, and if all that is left are trials that take longer than usual.
    """
    ended = [t.duration.total_seconds() for t in trials if t.state.is_finished() and t.duration is not None]
    running = [trial for trial in trials if trial.state.name == "RUNNING"]
    if not ended or not running:
        return None
    usual = median(ended)  # a trial that a resume has continued counts the time between
    now = datetime.now()
    passed = sum(min(usual, (now - t.datetime_start).total_seconds()) for t in running if t.datetime_start)
    left = max(0, target - len(trials) + len(running)) * usual - passed
    return round(float(left) / len(running), 1) if left > 0 else None
