"""Values of trials at rungs, and what was decided there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config import user_code
from orchestrator.config.spec import SweepSpec
from orchestrator.engine.loop import Row
from orchestrator.search import schedulers, user_search
from orchestrator.search.constraints import violated
from orchestrator.search.racing import Racing
from orchestrator.search.ranking import REPEAT
from orchestrator.search.schedulers import Observed, Scheduler
from orchestrator.search.unit_values import UnitValues
from workloads.contract import Objective

DECISION = "decision"
"""Attribute of a trial: the last rung at which the scheduler decided, and whether the trial ended there."""


class Rungs:
    """Records the values of trials at rungs in the journal, and asks the scheduler.

    A decision is in the journal before the trial ends. A trial that is judged again, because its driver died, is judged
    as before.
    """

    def __init__(self, folder: Path, spec: SweepSpec, objective: Objective, trials: Sequence[FrozenTrial]) -> None:
        self._sign = 1.0 if objective.direction == "max" else -1.0
        self._metric = f"validation/{objective.metric}"
        self._epochs = spec.plan.decide_at
        self._ordered = spec.search.ordered
        self._scheduler = _scheduler(folder, spec)
        self._name = spec.search.scheduler
        self._pruner = user_search.pruner(self._name) if user_code.is_named(self._name) else None
        self._observed: dict[int, Observed] = {}
        for trial in trials:
            if trial.state == TrialState.WAITING or REPEAT in trial.user_attrs:  # the first may be stopped before
                continue
            values = {epoch: self._sign * value for epoch, value in trial.intermediate_values.items()}
            self._observed[trial.number] = Observed(values)
            if trial.state.is_finished():
                self.end(trial)

    @property
    def unpaired(self) -> bool:
        """Whether racing could not compare a trial, for want of values by unit."""
        return isinstance(self._scheduler, Racing) and self._scheduler.unpaired

    def begin(self, number: int) -> None:
        """Record that a trial has begun."""
        self._of(number)

    def record(self, trial: optuna.Trial, rows: Sequence[Row]) -> None:
        """Record the values of a trial at the rungs among ``rows``."""
        values = self._of(trial.number).values
        for row in rows:
            if self._metric in row.metrics and row.epoch in self._epochs and row.epoch not in values:
                trial.report(row.metrics[self._metric], row.epoch)
                values[row.epoch] = self._sign * row.metrics[self._metric]

    def observe(self, number: int, epoch: int, units: UnitValues | None) -> None:
        """Take the values by unit of a trial that has reached the rung ``epoch``. Only racing uses them."""
        if isinstance(self._scheduler, Racing):
            self._scheduler.observe(number, units and replace(units, values=self._sign * units.values))

    def waits(self, number: int, epoch: int) -> bool:
        """Whether the decision at the rung ``epoch`` waits for trials with lower numbers (``ordered``)."""
        if not self._ordered:
            return False
        earlier = (trial for other, trial in self._observed.items() if other < number)
        return any(not trial.has_ended and epoch not in trial.values for trial in earlier)

    def prunes(self, trial: optuna.Trial, epoch: int) -> bool:
        """Whether the trial, which has reached ``epoch``, ends there."""
        if (self._scheduler or self._pruner) is None or epoch not in self._of(trial.number).values:
            return False
        decided = trial.user_attrs.get(DECISION)
        if decided and decided["epoch"] >= epoch:  # one that was decided on later has passed this rung
            return bool(decided["prune"]) and decided["epoch"] == epoch
        if self._scheduler is not None:
            prune = self._scheduler.prunes(trial.number, epoch, self._observed)
        else:
            assert self._pruner is not None
            frozen = trial.study.get_trials(deepcopy=False)[trial.number]
            prune = user_search.prunes(self._name, self._pruner, trial.study, frozen)
        trial.set_user_attr(DECISION, {"epoch": epoch, "prune": prune})
        return prune

    def end(self, trial: FrozenTrial) -> None:
        """Record that a trial has ended. Repeats of finalists compete with none: they are the best ones once more."""
        if REPEAT in trial.user_attrs:
            return
        observed = self._of(trial.number)
        observed.is_complete = trial.state == TrialState.COMPLETE
        observed.is_out = not observed.is_complete or bool(violated(trial))

    def _of(self, number: int) -> Observed:
        return self._observed.setdefault(number, Observed())


def _scheduler(folder: Path, spec: SweepSpec) -> Scheduler | None:
    """The sweep's scheduler. None where trials run to their end or meet as a population."""
    name = spec.search.scheduler
    epochs = spec.plan.epochs
    if name in ("none", "pbt") or user_code.is_named(name) or not schedulers.rungs(epochs, name):
        return None
    by_name: Mapping[str, Scheduler] = {
        "median": schedulers.Median(ordered=spec.search.ordered),
        "racing": Racing(epochs, folder, ordered=spec.search.ordered, constrained=bool(spec.search.constraint)),
    }
    return by_name.get(name) or schedulers.Halving(schedulers.brackets(epochs, name))
