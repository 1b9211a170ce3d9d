"""The sweep's truth: an Optuna study in a journal file. It says what is tried, stopped, done and best.

Tune only places trials; every decision is made here, on the driver, so that ``sweep --local`` and a cluster
decide alike, and a restart needs nothing but the journal (JSON lines, no pickle). A trial's identity is
(sweep, Optuna number).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from orchestrator import records, spaces
from orchestrator.engine import Row
from orchestrator.errors import UserError
from orchestrator.spec import SweepSpec
from workloads.contract import Objective

REDUCTION = 3
"""ASHA keeps the best 1/REDUCTION at each rung."""

Verdict = Literal["go on", "pruned", "complete", "failed"]

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial to be run, or run on. ``resumed`` says that an earlier process began it."""

    number: int
    params: dict[str, Any]
    resumed: bool = False


def rungs(epochs: int, scheduler: str) -> tuple[int, ...]:
    """ASHA's decision epochs: a ninth of the budget, then times three; in its last half a stop saves little."""
    if scheduler == "none":
        return ()
    first = max(1, epochs // REDUCTION**2)
    found = []
    while first <= epochs // 2:
        found.append(first)
        first *= REDUCTION
    return tuple(found)


class Study:
    """The trials of one sweep. Not thread-safe: the driver's one thread asks and tells."""

    def __init__(self, folder: Path, spec: SweepSpec, objective: Objective, space: spaces.Space) -> None:
        self.spec, self.objective, self._space = spec, objective, space
        journal = folder / "study.jsonl"
        # A killed driver may leave both; the folder's own lock says that no other is alive.
        records.drop_half_line(journal)
        journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)  # Optuna would wait 30 s for it
        decide_at = spec.plan.decide_at
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if decide_at:
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=decide_at[0], reduction_factor=REDUCTION, min_early_stopping_rate=0
            )
        try:
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal))),
                study_name=folder.name,
                load_if_exists=True,
                direction="maximize" if objective.direction == "max" else "minimize",
                pruner=pruner,
            )
        except Exception as error:
            raise UserError(
                f"The sweep's journal {journal} can not be read: {error}",
                fix="Restore it, or start a new sweep",
            ) from None
        self._open: dict[int, optuna.Trial] = {}
        self._interrupted = [t for t in self._study.get_trials(deepcopy=False) if t.state == TrialState.RUNNING]

    @property
    def trials(self) -> list[FrozenTrial]:
        return list(self._study.get_trials(deepcopy=False))

    @property
    def optuna_study(self) -> optuna.Study:
        return self._study

    def next(self) -> Trial | None:
        """The next trial: first those a dead process left running, then new ones up to the number asked for."""
        if self._interrupted:
            left = self._interrupted.pop(0)
            self._prepare_sampler(left.number)
            return self._begin(optuna.Trial(self._study, left._trial_id), resumed=True)
        number = len(self.trials)
        if number >= self.spec.search.trials:
            return None
        self._prepare_sampler(number)
        return self._begin(self._study.ask(), resumed=False)

    def running(self) -> list[int]:
        return sorted(self._open)

    def report(
        self, number: int, rows: list[Row], best: float | None, ended: bool, attributes: Mapping[str, Any]
    ) -> Verdict:
        """Take a trial's values; says whether it goes on. ``best`` is its best value so far."""
        trial = self._open[number]
        name = f"validation/{self.objective.metric}"
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        for row in rows:
            if name in row.metrics and row.epoch in self.spec.plan.decide_at and row.epoch not in known:
                trial.report(row.metrics[name], row.epoch)
        if ended:
            if best is None or not math.isfinite(best):
                return self.fail(number, f"the objective {name} was never reported")
            self._close(number, attributes)
            self._study.tell(trial, best)
            return "complete"
        if rows and rows[-1].epoch in self.spec.plan.decide_at and trial.should_prune():
            self._close(number, attributes)
            self._study.tell(trial, state=TrialState.PRUNED)
            return "pruned"
        return "go on"

    def fail(self, number: int, cause: str) -> Verdict:
        trial = self._open[number]
        self._close(number, {"cause": cause})
        self._study.tell(trial, state=TrialState.FAIL)
        return "failed"

    def cut(self, number: int, cause: str) -> None:
        """Give a running trial up for good: it does not take part and is not taken up again."""
        self._open[number].set_user_attr("cut", True)
        self.fail(number, cause)

    def best(self) -> FrozenTrial | None:
        """The best trial among those that ran to their end."""
        complete = [t for t in self.trials if t.state == TrialState.COMPLETE]
        if not complete:
            return None
        sign = 1.0 if self.objective.direction == "max" else -1.0
        return max(complete, key=lambda t: (sign * float(t.value or 0.0), -t.number))

    def _prepare_sampler(self, number: int) -> None:
        # A sampler's own random stream would be lost with the process; derived, it is where it would have been.
        self._study.sampler = _sampler(self.spec.search.sampler, _seed(self.spec.seed, number))

    def _begin(self, trial: optuna.Trial, resumed: bool) -> Trial:
        params = spaces.suggest(self._space, trial, self.spec.fixed)
        if "params" not in trial.user_attrs:  # its process may have died while it was asked for
            trial.set_user_attr("params", params)
        self._open[trial.number] = trial
        return Trial(trial.number, params, resumed)

    def _close(self, number: int, attributes: Mapping[str, Any]) -> None:
        trial = self._open.pop(number)
        for key, value in attributes.items():
            trial.set_user_attr(key, value)


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
