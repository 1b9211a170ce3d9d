"""The study of a sweep: an Optuna study in a journal file. It suggests, prunes and ranks trials.

Ray Tune only places trials. Every decision is made here, in the driver, so that ``sweep --local`` and a cluster decide
alike, and a resume needs only the journal (JSON lines, no pickle). A trial is identified by its sweep and its Optuna
number. The unit of execution is a *seed run*: a trial with one of its seeds, numbered ``number * seeds + seed``.
Without repeated seeds the two numbers are equal.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config import objectives
from orchestrator.config.spec import SweepSpec
from orchestrator.engine.loop import Row
from orchestrator.errors import UserError, one_line
from orchestrator.search import grid, samplers, spaces, unit_values, user_search
from orchestrator.search.constraints import OF_MODEL, SECONDS, Constraint, violations
from orchestrator.search.journal import JOURNAL, Journal
from orchestrator.search.progress import is_additional
from orchestrator.search.ranking import REPEAT
from orchestrator.search.rungs import Rungs
from orchestrator.search.sweep_trials import SweepTrials, over_seeds
from orchestrator.storage import disk
from workloads.contract import Objective

TrialDecision = Literal["go on", "paused", "pruned", "complete", "failed"]

AHEAD_FROM = 8
"""Number of trials at once from which the next suggestion is computed ahead. It lacks one result more."""

STOP = "stop"
"""Attribute of a trial that is to stop: how it ends."""

STOPPED = "it was stopped by a request"
"""Cause of a trial that is to stop as failed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A seed run to be started or continued.

    ``origin`` is the trial number that its seed derives from: its own, or that of the failed trial it repeats.
    ``repeat_of`` is the finalist that it repeats with another seed, if it does.
    """

    seed_run: int
    number: int
    seed: int
    origin: int
    params: dict[str, Any]
    repeat_of: int | None = None


class DrawFailed(Exception):
    """The search space failed for a trial, or its parameters cannot be recorded. The message is one sentence."""

    def __init__(self, seed_run: int, cause: str) -> None:
        self.seed_run = seed_run
        super().__init__(cause)


class Study(SweepTrials):
    """Runs the trials of one sweep. Not thread-safe: only the driver's main thread asks and tells."""

    def __init__(
        self, folder: Path, spec: SweepSpec, objective: Sequence[Objective], space: spaces.Space, conditional: bool
    ) -> None:
        super().__init__(folder, spec, objective)
        self._space = space
        self._conditional = conditional
        self._grid = grid.points(space, spec.fixed) if spec.search.sampler == "grid" else None
        self._open: dict[int, optuna.Trial] = {}
        self._more: deque[Trial] = deque()  # further seeds of trials whose first seed is complete
        self._interrupted = deque(t for t in self.trials if t.state == TrialState.RUNNING)
        self._ahead: optuna.Trial | None = None
        self._to_stop = {t.number: str(t.user_attrs[STOP]) for t in self.trials if STOP in t.user_attrs}
        self._rungs = Rungs(folder, spec, self.objective, self.trials)
        self._paused: dict[int, int] = {}
        """Rungs at which trials wait for those with lower numbers."""
        self._constraints = [Constraint.parse(text) for text in spec.search.constraint]

    def next(self, fresh: bool = True, final: bool = True) -> Trial | None:
        """The next seed run: interrupted ones first, then further seeds, retries and new trials, then finalists.

        None when none can start now; :meth:`exhausted` says whether one can later. With ``fresh=False`` only started
        trials continue, and, unless ``final`` is False too, the finalists are repeated. Raises DrawFailed for a trial
        without parameters, which is to be failed.
        """
        if self._interrupted:
            interrupted = self._interrupted.popleft()
            if (continued := self._take_up(interrupted)) is not None:
                return continued
            return self.next(fresh, final)
        due = next((n for n, epoch in sorted(self._paused.items()) if not self._rungs.waits(n, epoch)), None)
        if due is not None:
            del self._paused[due]
            return self._begin(self._optuna_trial(due))
        if self._more:
            return self._more.popleft()
        trial = None
        if fresh and self._ahead:
            trial = self._ahead
            self._ahead = None
        elif fresh or (final and self._repeats_wait()):
            trial = self._ask()
        if trial is None and final and not self._open and self._finalists_due():
            self._repeat_finalists()
            return self.next(fresh, final)
        return None if trial is None else self._begin(trial)

    def ask_ahead(self) -> None:
        """Compute the next suggestion while many trials train, so that the next free device does not wait for it.

        If the driver dies, the journal has it as a running trial, and a resume starts it. Repeats of finalists are not
        asked ahead: they start where a budget takes no new trial.
        """
        learns = self.spec.search.sampler not in ("random", "grid") and self.spec.search.scheduler != "pbt"
        if not learns or self._ahead or len(self._open) < AHEAD_FROM or self._interrupted or self._more:
            return
        if not self._repeats_wait():
            self._ahead = self._ask()
            if self._ahead is not None:
                with suppress(Exception):  # it is raised again when the trial begins
                    spaces.suggest(self._space, self._ahead, self.spec.fixed)

    def discard_ahead(self) -> None:
        """Discard the trial that was asked ahead, if there is one: it does not start any more."""
        if self._ahead is not None:
            self.discard(self._ahead.number * self.spec.search.seeds, "the budget takes no further trial")
            self._ahead = None

    def exhausted(self, fresh: bool = True, final: bool = True) -> bool:
        """Whether no further seed run can start. ``fresh`` and ``final`` as in :meth:`next`."""
        seeds = self.spec.search.seeds
        more_seeds = seeds > 1 and any(seed_run % seeds == 0 for seed_run in self._open)
        if self._interrupted or self._more or more_seeds or (fresh and self._ahead) or self._paused:
            return False
        if final and self._finalists_due():
            return False
        trials = self.trials
        enough = len(trials) >= self.target or self.is_ended_by_gain or self.is_ended_by_sampler
        complete = enough and all(trial.state != TrialState.WAITING for trial in trials)
        return complete or not (fresh or (final and self._repeats_wait()))

    def running(self) -> list[int]:
        """The running seed runs."""
        return sorted(self._open)

    def unfinished(self) -> list[int]:
        """Seed runs of started trials that have not ended, including waiting and interrupted ones."""
        seeds = self.spec.search.seeds
        return [
            trial.number * seeds + seed
            for trial in self.trials
            if trial.state == TrialState.RUNNING
            for seed in range(seeds)
            if f"seed_{seed}" not in trial.user_attrs
        ]

    def home(self, seed_run: int) -> Path:
        """Folder of a seed run's checkpoints and other files."""
        number, seed = self.trial_of(seed_run)
        return self.folder / "trials" / (f"{number:05d}" if seed == 0 else f"{number:05d}-seed{seed}")

    def report(
        self, seed_run: int, rows: Sequence[Row], best: float | None, ended: bool, attributes: Mapping[str, Any]
    ) -> TrialDecision:
        """Handle the values of a seed run and decide whether it continues. ``best`` is its best value so far."""
        trial = self._open[seed_run]
        is_first_seed = seed_run % self.spec.search.seeds == 0  # further seeds are not pruned
        judged = is_first_seed and REPEAT not in trial.user_attrs
        if judged and len(self.objectives) == 1:  # Optuna does not support intermediate values of several
            self._rungs.record(trial, rows)
        if (number := self.trial_of(seed_run)[0]) in self._to_stop and not ended:
            return self._stopped(seed_run, self._to_stop[number], attributes)
        if ended:
            return self._ended(seed_run, best, attributes)
        if not judged or not rows or (epoch := rows[-1].epoch) not in self.spec.plan.decide_at:
            return "go on"
        if self._rungs.waits(number, epoch):
            self._paused[number] = epoch
            del self._open[seed_run]
            return "paused"
        if self._rungs.prunes(trial, epoch):
            self._close(trial, attributes)
            self._end(trial, TrialState.PRUNED)
            return "pruned"
        return "go on"

    def observe(self, seed_run: int, epoch: int, encoded: unit_values.Encoded | None) -> None:
        """Take the values by unit of a seed run at the rung ``epoch``, before :meth:`report` decides there."""
        if seed_run % self.spec.search.seeds == 0:
            units = unit_values.decode(encoded) if encoded else None
            self._rungs.observe(self.trial_of(seed_run)[0], epoch, units)

    @property
    def unpaired(self) -> bool:
        """Whether racing could not compare a trial, for want of values by unit."""
        return self._rungs.unpaired

    def _end(self, trial: optuna.Trial, state: TrialState) -> None:
        self._rungs.end(self.optuna_study.tell(trial, state=state))

    def fail(self, seed_run: int, cause: str) -> TrialDecision:
        """Fail a trial with all of its seeds."""
        trial = self._open[seed_run]
        number, seed = self.trial_of(seed_run)
        self._more = deque(more for more in self._more if more.number != number)
        cause = f"{cause} (seed {seed})" if self.spec.search.seeds > 1 else cause
        self._close(trial, {"cause": cause})
        self._end(trial, TrialState.FAIL)
        return "failed"

    def discard(self, seed_run: int, cause: str) -> None:
        """Fail a trial for good: it is not ranked, resumed or retried."""
        trial = self._open.setdefault(seed_run, self._optuna_trial(self.trial_of(seed_run)[0]))
        trial.set_user_attr("cut", True)
        self.fail(seed_run, cause)

    def stop_trial(self, number: int, verdict: str, request: str) -> str | None:
        """Stop a running trial at its next report, as ``pruned`` or ``failed``, or end a waiting one now.

        Returns the name of its state before, None if it had ended.
        """
        state = next((trial.state for trial in self.trials if trial.number == number), None)
        open_now = state in (TrialState.RUNNING, TrialState.WAITING)
        if state == TrialState.RUNNING:
            self._optuna_trial(number).set_user_attr(STOP, verdict)
            self._to_stop[number] = verdict
        elif state == TrialState.WAITING:
            self._optuna_trial(number).set_user_attr("cut", True)  # a stopped trial is not tried again
            self._optuna_trial(number).set_user_attr("cause", STOPPED)
            ended = TrialState.FAIL if verdict == "failed" else TrialState.PRUNED
            # Optuna's study tells only of running trials. The journal is read again, which is rare.
            JournalStorage(Journal(self.folder / JOURNAL)).set_trial_state_values(number, ended)
        self.optuna_study.set_user_attr(f"request {request}", verdict if open_now else "it was not running")
        return state.name if state is not None and open_now else None

    def _ask(self) -> optuna.Trial | None:
        """A new trial or a retry. None when all trials exist."""
        trials = self.trials
        waiting = next((trial.number for trial in trials if trial.state == TrialState.WAITING), None)
        if waiting is None and (len(trials) >= self.target or self.is_ended_by_sampler or self._only_noise_is_left()):
            return None
        number = len(self.optuna_study.get_trials(deepcopy=False)) if waiting is None else waiting
        if self._grid is not None and waiting is None:
            self.optuna_study.enqueue_trial(self._grid[sum(not is_additional(trial) for trial in trials)])
        self._prepare_sampler(number)
        return self.optuna_study.ask()

    def _prepare_sampler(self, number: int) -> None:
        search = self.spec.search
        # The seed derives from the trial number, because a sampler's state would be lost with the process.
        seed = samplers.seed_of(self.spec.seed, number)
        self.optuna_study.sampler = samplers.sampler(search.sampler, seed, conditional=self._conditional)

    def _take_up(self, left: FrozenTrial) -> Trial | None:
        """Continue a trial of a dead driver: with its first seed, or by queueing its missing seeds."""
        self._prepare_sampler(left.number)
        trial = self._optuna_trial(left.number)
        if "params" not in left.user_attrs:
            self._draw_again(left, trial)
        begun = self._begin(trial)
        if "seed_0" not in left.user_attrs:
            return begun
        trial = self._open.pop(begun.seed_run)
        missing = [s for s in range(self.spec.search.seeds) if f"seed_{s}" not in left.user_attrs]
        self._queue(trial, missing, begun.params)
        self._conclude(trial)  # the driver may have died before this
        return None

    def _draw_again(self, left: FrozenTrial, trial: optuna.Trial) -> None:
        """Draw once more what a dead driver had drawn when it was killed between two parameters of ``trial``.

        The recorded values are kept, but a seeded sampler's next value follows from the number of draws before it.
        """
        given = left.system_attrs.get("fixed_params", {})
        for name, distribution in left.distributions.items():
            if name not in given and not distribution.single() and name not in trial.relative_params:
                self.optuna_study.sampler.sample_independent(self.optuna_study, left, name, distribution)

    def _begin(self, trial: optuna.Trial) -> Trial:
        seed_run = trial.number * self.spec.search.seeds
        self._open[seed_run] = trial
        about = trial.user_attrs
        try:
            suggested = spaces.suggest(self._space, trial, self.spec.fixed)
            if "params" not in about:  # otherwise it was started before or is a retry
                trial.set_user_attr("params", suggested)
        except user_search.CodeFailed:
            raise
        except UserError as error:
            raise DrawFailed(seed_run, str(error)) from error
        except Exception as error:
            if disk.is_full(error):  # for the journal, which is no fault of the space
                raise
            cause = f"{spaces.FAILED}: {type(error).__name__}: {one_line(error)}"
            raise DrawFailed(seed_run, cause) from error
        if REPEAT not in about:
            self._rungs.begin(trial.number)
        params = about.get("params", suggested)
        origin = about.get("seed_of", trial.number)
        return Trial(seed_run, trial.number, 0, origin, dict(params), about.get(REPEAT))

    def _queue(self, trial: optuna.Trial, seeds: Sequence[int], params: dict[str, Any]) -> None:
        for seed in seeds:
            seed_run = trial.number * self.spec.search.seeds + seed
            self._open[seed_run] = trial
            self._more.append(Trial(seed_run, trial.number, seed, trial.number, params))

    def _stopped(self, seed_run: int, verdict: str, attributes: Mapping[str, Any]) -> TrialDecision:
        """End a trial as it was requested."""
        if verdict == "failed":
            self.discard(seed_run, STOPPED)
            return "failed"
        trial = self._open[seed_run]
        self._more = deque(more for more in self._more if more.number != trial.number)
        self._close(trial, attributes)
        self._end(trial, TrialState.PRUNED)
        return "pruned"

    def _ended(self, seed_run: int, best: float | None, attributes: Mapping[str, Any]) -> TrialDecision:
        if best is None or not math.isfinite(best):
            return self.fail(seed_run, f"the objective validation/{self.objective.metric} was never reported")
        try:
            others = [objectives.value(o, attributes["best_metrics"]) for o in self.objectives[1:]]
        except UserError as error:
            return self.fail(seed_run, str(error))
        trial = self._open[seed_run]
        values = [best, *others]
        try:
            violations = self._violations(attributes)
        except UserError as error:
            return self.fail(seed_run, str(error))
        if self.spec.search.seeds == 1:
            with self._journal.together():
                self._close(trial, attributes)
                self._tell(trial, values, violations)
            return "complete"
        _, seed = self.trial_of(seed_run)
        trial.set_user_attr(f"seed_{seed}", {"values": values, **attributes})
        del self._open[seed_run]
        if seed == 0:
            self._queue(trial, range(1, self.spec.search.seeds), trial.user_attrs["params"])
        self._conclude(trial)
        return "complete"

    def _conclude(self, trial: optuna.Trial) -> None:
        """Tell the study the mean over the seeds, once all have ended."""
        attributes = self.optuna_study.get_trials(deepcopy=False)[trial.number].user_attrs
        results = [attributes[f"seed_{s}"] for s in range(self.spec.search.seeds) if f"seed_{s}" in attributes]
        if len(results) < self.spec.search.seeds:
            return
        values = [fmean(column) for column in zip(*(result["values"] for result in results))]
        mean = over_seeds(results)
        self._close(trial, mean | {"best_value": values[0]})
        measured = {name: fmean(result[name] for result in results) for name in OF_MODEL if name in results[0]}
        measured[SECONDS] = mean[SECONDS] / len(results)
        self._tell(trial, values, self._violations(mean | measured))

    def _violations(self, attributes: Mapping[str, Any]) -> dict[str, float]:
        return violations(self._constraints, attributes) if self._constraints else {}

    def _tell(self, trial: optuna.Trial, values: Sequence[float], violations: Mapping[str, float]) -> None:
        for constraint, violation in violations.items():
            trial.set_constraint(constraint, violation)
        self._rungs.end(self.optuna_study.tell(trial, list(values)))

    def _close(self, trial: optuna.Trial, attributes: Mapping[str, Any]) -> None:
        self._open = {other: t for other, t in self._open.items() if t.number != trial.number}
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
