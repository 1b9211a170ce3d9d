"""Expected gain of further trials, for ``--until-gain``.

Further trials are taken for draws from the distribution of the last half of the trials. A share ``p`` of them ran to
their end, ``k`` trials with the median ``m``; the ``h`` better ones have the spread ``s`` around it, without the noise
that the selection has estimated. With ``b`` the estimate of the best trial, the best of ``n`` further trials gains

    integral from b of 1 - (1 - p (1 - T((x - m) / c)))^n dx,    c^2 = s^2 h / (h + 2) (1 + pi / (2 k))

``T`` is Student's distribution with ``h + 2`` degrees of freedom. A normal one with ``m`` and ``s`` would promise too
little, since these are estimates from the few values whose best is often ``b``: where it was not a lucky one, ``s`` is
too small. ``pi / (2 k)`` is from the variance of the median. ``+ 2`` gives the estimate with the least squared error.

The noise of selecting is the standard error of the difference of two trials, over units and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from optuna.trial import FrozenTrial, TrialState

from orchestrator.errors import plural
from orchestrator.search.constraints import violated
from orchestrator.search.ranking import REPEAT
from orchestrator.search.selection import Selection
from workloads.contract import Objective

LEAST = 10
"""Number of ended trials from which the gain is estimated."""

STEPS = 400
SPREADS = 30
"""Steps of the integral, and how many spreads above the best it ends."""


@dataclass(frozen=True)
class Gain:
    """The expected gain of ``trials`` further trials, and the noise of selecting."""

    trials: int
    gain: float
    noise: float

    @property
    def is_noise(self) -> bool:
        return self.gain <= self.noise

    def __str__(self) -> str:
        return f"expected gain of {plural(self.trials, 'more trial')} {self.gain:.4g}, noise {self.noise:.4g}"


def expected_gain(
    trials: Sequence[FrozenTrial], objective: Objective, selection: Selection | None, further: int
) -> Gain | None:
    """The gain of ``further`` trials. None before :data:`LEAST` trials have ended or where no noise is known."""
    ended = [trial for trial in trials if trial.state.is_finished() and REPEAT not in trial.user_attrs]
    if len(ended) < LEAST or not selection or not selection.estimates:
        return None
    best = selection.estimates[0]
    errors = [error for error in (best.units_error, best.seeds_error) if error is not None]
    noise = math.hypot(*errors)
    sign = 1.0 if objective.direction == "max" else -1.0
    last = ended[len(ended) // 2 :]
    values = [sign * t.values[0] for t in last if t.state == TrialState.COMPLETE and not violated(t)]
    gain = _best_of(values, len(values) / len(last), sign * best.value, noise, further)
    return Gain(further, gain, math.sqrt(2) * noise)


def _best_of(values: Sequence[float], share: float, best: float, noise: float, trials: int) -> float:
    """Expected gain over ``best`` of the best of so many draws, of which a ``share`` has a value."""
    if not values:
        return 0.0
    middle = median(values)
    better = [(value - middle) ** 2 - noise**2 for value in values if value > middle]
    spread = math.sqrt(max(0.0, fmean(better))) if better else 0.0
    if spread == 0:
        return max(0.0, middle - best)
    import numpy as np
    from scipy.special import stdtr

    count = len(better)
    scale = spread * math.sqrt(count / (count + 2) * (1 + math.pi / (2 * len(values))))
    step = (max(best, middle) + SPREADS * scale - best) / STEPS
    points = best + step * (np.arange(STEPS) + 0.5)
    above = share * stdtr(count + 2, (middle - points) / scale)
    return step * float((1 - (1 - above) ** trials).sum())
