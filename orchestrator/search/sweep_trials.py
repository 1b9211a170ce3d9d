"""The trials of a sweep in its journal: which there are, what became of them, which is the best, and which follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config.spec import SweepSpec
from orchestrator.search import gain, selection, user_search
from orchestrator.search.constraints import violated
from orchestrator.search.journal import JOURNAL, Journal, open_study
from orchestrator.search.progress import is_additional
from orchestrator.search.ranking import REPEAT, ranked, repeats
from orchestrator.search.selection import Selection
from orchestrator.storage import disk
from workloads.contract import Objective

FINALISTS = "finalists"
"""Attribute of the study: the number of trials after which its finalists were last chosen."""

ENDED = "ended by gain"
"""Attribute of the study: the number of trials it was to have when its search ended by ``--until-gain``."""


class SweepTrials:
    """The trials of one sweep, without what runs now."""

    def __init__(self, folder: Path, spec: SweepSpec, objective: Sequence[Objective]) -> None:
        self.folder = folder
        self.spec = spec
        self.objectives = tuple(objective)
        # A killed driver may leave both. The folder's lock ensures that no other driver is alive.
        disk.drop_half_line(folder / JOURNAL)
        (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)  # Optuna would wait 30 s for it
        directions = ["maximize" if o.direction == "max" else "minimize" for o in self.objectives]
        self._journal = Journal(folder / JOURNAL)
        self.optuna_study = open_study(folder, directions, backend=self._journal)
        self.gain: gain.Gain | None = None
        """The last estimate for ``--until-gain``."""
        self.lacks_noise = False
        """Whether the gain could not be estimated because no noise is known."""
        self._next_gain = gain.LEAST
        self._additional = 0, 0
        """The number of trials that :attr:`target` has seen, and of additional ones among them."""

    @property
    def trials(self) -> list[FrozenTrial]:
        """The sweep's own trials, in the order of their numbers."""
        every = self.optuna_study.get_trials(deepcopy=False)
        return [trial for trial in every if "warm_from" not in trial.user_attrs]

    @property
    def objective(self) -> Objective:
        """The first objective. It selects epochs and the winner, and schedulers use it."""
        return self.objectives[0]

    @property
    def target(self) -> int:
        """Total number of trials: the requested ones, and one for each retry and each added trial."""
        trials = self.trials
        counted, additional = self._additional
        additional += sum(map(is_additional, trials[counted:]))  # a trial is one from its creation on
        self._additional = len(trials), additional
        return self.spec.search.trials + additional

    def trial_of(self, seed_run: int) -> tuple[int, int]:
        """Trial number and seed of a seed run."""
        return divmod(seed_run, self.spec.search.seeds)

    def cause(self, seed_run: int) -> str:
        """Cause of a failed seed run."""
        attributes = self.optuna_study.get_trials(deepcopy=False)[self.trial_of(seed_run)[0]].user_attrs
        return str(attributes.get("cause", "unknown"))

    def violations(self, seed_run: int) -> list[str]:
        """The constraints that the trial of a seed run violates. Empty before the end of its last seed."""
        return violated(self.optuna_study.get_trials(deepcopy=False)[self.trial_of(seed_run)[0]])

    def applied(self, request: str) -> bool:
        """Whether a request was applied or refused."""
        if f"request {request}" in self.optuna_study.user_attrs:
            return True
        return any(trial.user_attrs.get("request") == request for trial in self.trials)

    def refuse(self, request: str, reason: str) -> None:
        """Record that a request cannot be applied."""
        self.optuna_study.set_user_attr(f"request {request}", reason)

    def add(self, params: Mapping[str, Any], request: str) -> int:
        """Enqueue a trial with ``params``; the sampler suggests what they lack. Returns its number."""
        self.optuna_study.enqueue_trial(dict(params), user_attrs={"request": request})
        return len(self.optuna_study.get_trials(deepcopy=False)) - 1

    def failed(self) -> list[FrozenTrial]:
        """The failed trials, without those that were cut or retried."""
        trials = self.trials
        retried = {trial.user_attrs.get("retry_of") for trial in trials}
        return [
            t for t in trials if t.state == TrialState.FAIL and "cut" not in t.user_attrs and t.number not in retried
        ]

    def retry_failed(self) -> int:
        """Enqueue each failed trial again as a new one with its parameters and seed. Returns their number."""
        again = [trial for trial in self.failed() if "params" in trial.user_attrs]
        for trial in again:
            first = trial.user_attrs.get("seed_of", trial.number)
            about = {"retry_of": trial.number, "seed_of": first, "params": trial.user_attrs["params"]}
            about |= {name: trial.user_attrs[name] for name in (REPEAT,) if name in trial.user_attrs}
            self.optuna_study.enqueue_trial(trial.params, user_attrs=about)
        return len(again)

    def add_earlier(self, earlier: Sequence[FrozenTrial]) -> None:
        """Add trials of earlier sweeps for the sampler, each once.

        They have numbers in the journal and do not count as trials of this sweep.
        """
        added = {trial.user_attrs.get("warm_from") for trial in self.optuna_study.get_trials(deepcopy=False)}
        for trial in earlier:
            if trial.user_attrs["warm_from"] not in added:
                self.optuna_study.add_trial(trial)

    def best(self) -> FrozenTrial | None:
        """The best complete trial by the first objective."""
        return next(iter(ranked(self.trials, self.objective)), None)

    def winner(self) -> FrozenTrial | None:
        """The trial to be refitted and tested: the best, or with ``select="cheapest"`` the cheapest contender."""
        chosen = self.selection()
        if chosen is None:
            return None
        of_number = {trial.number: trial for trial in self.trials}
        if chosen.contenders is None or self.spec.search.select == "best":
            return of_number[chosen.best]
        return min(
            (of_number[number] for number in chosen.contenders),
            key=lambda trial: (trial.user_attrs["train_seconds"], trial.number),
        )

    def result(self, trial: FrozenTrial) -> dict[str, Any]:
        """``epoch``, ``best_epoch``, ``best_value`` and ``best_metrics`` of a complete trial over all of its seeds."""
        runs = [{"best_value": each.values[0], **each.user_attrs} for each in (trial, *repeats(self.trials, trial))]
        if len(runs) == 1:
            return dict(trial.user_attrs)
        return over_seeds(runs) | {"best_value": fmean(run["best_value"] for run in runs)}

    def _finalists_due(self) -> bool:
        """Whether the search is to be followed by repeats of the finalists that are not enqueued yet."""
        return bool(self.spec.search.finalists) and self.optuna_study.user_attrs.get(FINALISTS) != self._searched()

    def _searched(self) -> int:
        """Number of trials that are no repeats."""
        return sum(REPEAT not in trial.user_attrs for trial in self.trials)

    def _repeats_wait(self) -> bool:
        return any(trial.state == TrialState.WAITING and REPEAT in trial.user_attrs for trial in self.trials)

    def _repeat_finalists(self) -> None:
        """Enqueue the runs that the best trials lack to have all of their seeds."""
        chosen = self.selection()
        order = {one.trial: position for position, one in enumerate(chosen.estimates if chosen else ())}
        candidates = sorted(ranked(self.trials, self.objective), key=lambda trial: order.get(trial.number, 0))
        for trial in candidates[: self.spec.search.finalists]:
            have = 1 + sum(each.user_attrs.get(REPEAT) == trial.number for each in self.trials)
            for _ in range(have, self.spec.search.finalist_seeds):
                about = {REPEAT: trial.number, "params": trial.user_attrs["params"]}
                self.optuna_study.enqueue_trial(trial.params, user_attrs=about)
        self.optuna_study.set_user_attr(FINALISTS, self._searched())

    def selection(self) -> Selection | None:
        """The best trial and its contenders. None if no trial is complete."""
        return selection.of_sweep(self.folder, self.trials, self.objective)

    @property
    def is_ended_by_gain(self) -> bool:
        """Whether the search has ended by ``--until-gain``. With ``--more-trials`` it goes on to its last trial."""
        return bool(self.optuna_study.user_attrs.get(ENDED) == self.spec.search.trials)

    @property
    def is_ended_by_sampler(self) -> bool:
        """Whether a user's sampler has ended the search: it has no further point."""
        return user_search.STOPPED in self.optuna_study.user_attrs

    def _only_noise_is_left(self) -> bool:
        """Estimate the gain of further trials, each time a tenth more trials have ended. Record when it is noise."""
        further = self.spec.search.until_gain
        if further is None or ENDED in self.optuna_study.user_attrs:
            return self.is_ended_by_gain
        ended = sum(trial.state.is_finished() for trial in self.trials)
        if ended < self._next_gain:
            return False
        self._next_gain = ended + max(1, ended // 10)
        selected = self.selection()
        self.gain = gain.expected_gain(self.trials, self.objective, selected, further)
        self.lacks_noise = selected is not None and not selected.estimates
        if self.gain is None or not self.gain.is_noise:
            return False
        self.optuna_study.set_user_attr(ENDED, self.spec.search.trials)
        return True

    def _optuna_trial(self, number: int) -> optuna.Trial:
        return optuna.Trial(self.optuna_study, number)  # in a journal of one study a trial's id is its number


def over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Attributes of a trial over its seeds: means of the metrics that every seed has, and the median best epoch."""
    of_seeds = [result["best_metrics"] for result in results]
    metrics = {
        name: fmean(one[name] for one in of_seeds) for name in of_seeds[0] if all(name in one for one in of_seeds)
    }
    return {
        "epoch": max(result["epoch"] for result in results),
        "best_epoch": round(median(result["best_epoch"] for result in results)),
        "best_metrics": metrics,
        "train_seconds": sum(result["train_seconds"] for result in results),
    }
