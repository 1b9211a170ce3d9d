"""Population based training (Jaderberg et al., 2017).

After each tenth of a trial the population meets. Each member of the worst quarter copies the checkpoint and the
parameters of a member of the best quarter, perturbs the parameters, and continues. The meeting is a barrier, so the
result depends only on the seed and not on the speed of processes. A member is one Optuna trial from its first to its
last epoch. Between two meetings it runs as a segment; with fewer slots than members they take turns.
"""

from __future__ import annotations

import math
import random
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from orchestrator.engine import checkpoint
from orchestrator.engine.loop import Row
from orchestrator.errors import UserError
from orchestrator.search import members
from orchestrator.search.members import LINEAGE
from orchestrator.search.study import Study, Trial, TrialDecision
from orchestrator.storage import disk

QUANTILE = 0.25
RESAMPLE = 0.25
FACTORS = (0.8, 1.2)
MEMBER_CHECKPOINTS_KEPT = 4
"""Checkpoints kept of each member."""

MET = "met"
"""Attribute of the study: the epoch of the last completed meeting."""


class Population(Study):
    """A study whose trials meet at the epochs ``decide_at``.

    The user attributes of a member hold its state (``paused_at``, the epoch of its last meeting, and ``params``), and
    those of the study the last completed meeting. A resume therefore needs only the journal.
    """

    def __init__(self, *args: Any, changeable: Sequence[str]) -> None:
        super().__init__(*args)
        self.changeable = changeable
        self._due: deque[int] = deque()

    def next(self, fresh: bool = True, final: bool = True) -> Trial | None:
        """A new member until the population is complete, then the members that continue after a meeting."""
        trial = super().next(fresh)
        while trial is not None and self._waits(trial.number):  # the member of a dead driver waits for a meeting
            self._open.pop(trial.seed_run)
            trial = super().next(fresh)
        if trial is not None:
            return trial
        if not self._due:
            self._meet()
        return self._begin(self._optuna_trial(self._due.popleft())) if self._due else None

    def exhausted(self, fresh: bool = True, final: bool = True) -> bool:
        return super().exhausted(fresh) and not self.unfinished()

    def report(
        self, seed_run: int, rows: Sequence[Row], best: float | None, ended: bool, attributes: Mapping[str, Any]
    ) -> TrialDecision:
        verdict = super().report(seed_run, rows, best, ended, attributes)
        met = self.met
        if verdict != "go on" or not rows or rows[-1].epoch not in self.spec.plan.decide_at or rows[-1].epoch <= met:
            return verdict
        trial = self._open.pop(seed_run)
        epoch = rows[-1].epoch
        for name, value in {**attributes, "paused_at": epoch}.items():
            trial.set_user_attr(name, value)
        return "paused"

    def own_rows(self, seed_run: int, rows: Sequence[Row]) -> list[Row]:
        """``rows`` after the member last took over. The donor's checkpoint repeats earlier ones."""
        lineage = self.lineage(seed_run)
        return [row for row in rows if not lineage or row.epoch > lineage[-1]["epoch"]]

    def lineage(self, number: int) -> list[dict[str, Any]]:
        """At which epochs a member took over, ``from`` whom, and the ``params`` it continued with."""
        taken: list[dict[str, Any]] = self.optuna_study.get_trials(deepcopy=False)[number].user_attrs.get(LINEAGE, [])
        return taken

    @property
    def met(self) -> int:
        """Epoch of the last completed meeting; 0 before the first one."""
        return int(self.optuna_study.user_attrs.get(MET, 0))

    def first_params(self, number: int) -> dict[str, Any]:
        """Initial parameters of a member."""
        about = self.optuna_study.get_trials(deepcopy=False)[number].user_attrs
        first: dict[str, Any] = about.get("began_with", about["params"])
        return first

    def _ended(self, seed_run: int, best: float | None, attributes: Mapping[str, Any]) -> TrialDecision:
        """A member ends with the parameters of its best epoch: it may have taken over others since."""
        training = members.parts(self.optuna_study.get_trials(deepcopy=False), seed_run)
        return super()._ended(
            seed_run, best, {**attributes, "params": members.at(training, attributes["best_epoch"]).params}
        )

    def _waits(self, number: int) -> bool:
        attributes = self.optuna_study.get_trials(deepcopy=False)[number].user_attrs
        return bool(attributes.get("paused_at", 0) > self.met)

    def _meet(self) -> None:
        """Exploit and explore once all members have paused, then let them continue."""
        waiting = [t for t in self.trials if t.state == TrialState.RUNNING]
        if self._open or not waiting:
            return
        epoch = max(member.user_attrs["paused_at"] for member in waiting)
        direction = 1.0 if self.objective.direction == "max" else -1.0
        scores = {member.number: direction * member.intermediate_values[epoch] for member in waiting}
        source = random.Random(f"{self.spec.seed}/{epoch}")
        for loser, donor in pairs(scores, source).items():
            self._exploit(loser, donor, epoch, source)
        self.optuna_study.set_user_attr(MET, epoch)  # one write: the meeting is complete for all members or for none
        self._due.extend(sorted(scores))

    def _exploit(self, loser: int, donor: int, epoch: int, source: random.Random) -> None:
        trials = self.optuna_study.get_trials(deepcopy=False)
        params = trials[donor].user_attrs["params"]
        origin = members.parts(trials, donor)[-1].trial
        ranges = trials[origin].distributions  # in a conditional space members differ in them
        begun = self.first_params(origin)
        # A space may derive a parameter from the value drawn under its name: the range is not the parameter's.
        drawn = [name for name, value in trials[origin].params.items() if name in begun and begun[name] == value]
        changed = perturb(params, ranges, sorted({*self.changeable} & {*drawn}), source)
        home = self.home(loser)
        source_folder = checkpoint.latest(self.home(donor))
        if source_folder is None or source_folder.name != checkpoint.name(epoch):
            raise UserError(
                f"Trial {donor} has no intact checkpoint of epoch {epoch} to be taken over", fix="Start a new sweep"
            )
        partial = home / f".{source_folder.name}.taken.partial"
        with disk.writing(home):
            shutil.rmtree(partial, ignore_errors=True)
            home.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source_folder, partial)
            shutil.rmtree(home / source_folder.name, ignore_errors=True)
            partial.rename(home / source_folder.name)
        trial = self._optuna_trial(loser)
        earlier = [step for step in self.lineage(loser) if step["epoch"] < epoch]
        trial.set_user_attr("began_with", self.first_params(loser))
        trial.set_user_attr(LINEAGE, [*earlier, {"epoch": epoch, "from": donor, "params": changed}])
        trial.set_user_attr("params", changed)


def pairs(scores: Mapping[int, float], source: random.Random) -> dict[int, int]:
    """Donor of each member of the worst quarter, drawn from the best quarter. Larger scores are better."""
    ranked = sorted(scores, key=lambda number: (scores[number], -number))
    count = min(max(1, round(len(ranked) * QUANTILE)), len(ranked) // 2)
    best = ranked[len(ranked) - count :]
    return {loser: source.choice(best) for loser in ranked[:count] if scores[loser] < scores[best[0]]}


def perturb(
    params: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    changeable: Sequence[str],
    source: random.Random,
) -> dict[str, Any]:
    """Copy of ``params`` whose changeable ones are resampled (probability 0.25) or multiplied by 0.8 or 1.2."""
    changed = dict(params)
    for name in sorted(set(changeable) & set(distributions) & set(params)):
        distribution = distributions[name]
        if isinstance(distribution, CategoricalDistribution):
            if source.random() < RESAMPLE:
                changed[name] = source.choice(distribution.choices)
            continue
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        low = distribution.low
        high = distribution.high
        resampled = source.random() < RESAMPLE
        value = _draw(distribution, source) if resampled else params[name] * source.choice(FACTORS)
        if distribution.step:
            value = low + round((value - low) / distribution.step) * distribution.step
        value = min(max(value, low), high)
        changed[name] = int(value) if isinstance(distribution, IntDistribution) else float(value)
    return changed


def _draw(distribution: FloatDistribution | IntDistribution, source: random.Random) -> float:
    if distribution.log:
        return math.exp(source.uniform(math.log(distribution.low), math.log(distribution.high)))
    return source.uniform(distribution.low, distribution.high)
