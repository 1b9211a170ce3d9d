"""Values of trials at rungs, and what was decided there."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState

from orchestrator.engine.loop import Row
from orchestrator.search.schedulers import Observed, Scheduler
from workloads.contract import Objective

DECISION = "decision"
"""Attribute of a trial: the last rung at which the scheduler decided, and whether the trial ended there."""


class Rungs:
    """Records the values of trials at rungs in the journal, and asks the scheduler.

    A decision is in the journal before the trial ends. A trial that is judged again, because its driver died, is judged
    as before.
    """

    def __init__(
        self, trials: Sequence[FrozenTrial], objective: Objective, epochs: Sequence[int], scheduler: Scheduler | None
    ) -> None:
        self._sign = 1.0 if objective.direction == "max" else -1.0
        self._metric = f"validation/{objective.metric}"
        self._epochs = epochs
        self._scheduler = scheduler
        self._observed = {
            trial.number: Observed(
                {epoch: self._sign * value for epoch, value in trial.intermediate_values.items()},
                trial.state == TrialState.COMPLETE,
            )
            for trial in trials
        }

    def record(self, trial: optuna.Trial, rows: Sequence[Row]) -> None:
        """Record the values of a trial at the rungs among ``rows``."""
        values = self._of(trial.number).values
        for row in rows:
            if self._metric in row.metrics and row.epoch in self._epochs and row.epoch not in values:
                trial.report(row.metrics[self._metric], row.epoch)
                values[row.epoch] = self._sign * row.metrics[self._metric]

    def prunes(self, trial: optuna.Trial, epoch: int) -> bool:
        """Whether the trial, which has reached ``epoch``, ends there."""
        if self._scheduler is None or epoch not in self._of(trial.number).values:
            return False
        decided = trial.user_attrs.get(DECISION)
        if decided and decided["epoch"] == epoch:
            return bool(decided["prune"])
        prune = self._scheduler.prunes(trial.number, epoch, self._observed)
        trial.set_user_attr(DECISION, {"epoch": epoch, "prune": prune})
        return prune

    def complete(self, number: int) -> None:
        """Record that a trial ran to its end."""
        self._of(number).complete = True

    def _of(self, number: int) -> Observed:
        return self._observed.setdefault(number, Observed())
