"""Selection of a winner with the noise of its values in view.

Two kinds of noise are estimated apart. Over units: a validation split is a sample of users, queries or pairs, on which
configurations compare differently than on others. Over seeds: another seed trains another model. With ``x[i, u]`` the
value of trial ``i`` for unit ``u``, averaged over its ``n[i]`` seeds, the difference of two trials has the variance

    var_u(x[i, u] - x[j, u]) / U + s² (1 / n[i] + 1 / n[j])

where ``s²`` is pooled within the trials that have several seeds. A trial is a *contender* if it cannot be separated
from the best: the set of contenders contains the best one with probability 1 - :data:`LEVEL` (Gupta 1965, with the
quantiles of the largest studentised difference by bootstrap over units).

The winner has the best *estimate*: its value, shrunk towards the median of all trials by its own noise (the mean of a
normal prior). A trial's noise over units is the variance of ``x[i, u] - x[i, .] - x[., u] + x[., .]``, without the part
that all trials share (Grubbs 1948).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.search import unit_values
from orchestrator.search.ranking import REPEAT, ranked, repeats, seed_results
from orchestrator.search.unit_values import UnitValues
from workloads.contract import Objective

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LEVEL = 0.05
RESAMPLES = 2000
MOST = 100
"""Number of trials, the best ones, that are compared."""

RESAMPLED_FROM = 20
"""Number of units from which resamples say how much values differ by chance. Below, Bonferroni's bound by Student's
distribution holds as well, if it is larger."""

PRIOR_UNITS = 30
"""Weight, in units, of the typical variance when that of one trial is estimated: a few units say little of it."""

NO_NOISE = (
    "No trial can be separated from another: validation has no values of two or more units that average to the "
    "objective, and no trial has several seeds (--seeds, --finalists)"
)


@dataclass(frozen=True)
class Candidate:
    """A complete trial: its value, that of each seed, and the values of units averaged over seeds, if known."""

    trial: int
    value: float
    seeds: tuple[float, ...]
    units: UnitValues | None

    @property
    def ids(self) -> tuple[int, str] | None:
        """What two candidates have in common if their units are the same. None without units."""
        return (self.units.total, self.units.ids) if self.units else None


@dataclass(frozen=True)
class Estimate:
    """What is to be expected of a trial on other units and seeds, from its value and its noise.

    ``units_error`` and ``seeds_error`` are the standard errors of its value over units, with the part that all trials
    share removed, and over seeds. Each is None where it is not known: the first needs two trials.
    """

    trial: int
    value: float
    units_error: float | None
    seeds_error: float | None

    def text(self) -> str:
        """``estimate 0.2031 (se 0.0012 over units, 0.0008 over seeds)``."""
        errors = {"units": self.units_error, "seeds": self.seeds_error}
        shown = ", ".join(f"{error:.2g} over {name}" for name, error in errors.items() if error is not None)
        return f"estimate {self.value:.4g}" + (f" (se {shown})" if shown else "")


@dataclass(frozen=True)
class Selection:
    """The best trial, and what is known of its uncertainty.

    ``estimates`` are of all candidates, the best first; empty where no noise is known. ``contenders`` cannot be
    separated from the best one, which is the first of them; None where that is not known. ``left_out`` are trials that
    cannot be contenders, since they have no values of the units that the others have.
    """

    best: int
    contenders: tuple[int, ...] | None = None
    estimates: tuple[Estimate, ...] = ()
    left_out: tuple[int, ...] = ()

    def estimate(self, trial: int) -> Estimate | None:
        """The estimate of a trial. None where no noise is known."""
        return next((one for one in self.estimates if one.trial == trial), None)

    def text(self) -> str:
        """Which other trials are contenders and which are left out, in a sentence; or why that is not known."""
        if not self.estimates:
            return NO_NOISE
        out = f"trial{'s' * (len(self.left_out) > 1)} {', '.join(map(str, self.left_out))}"
        if self.contenders is None:
            return f"No trial can be separated from trial {self.best}: it lacks values of the units that others have"
        first = self.estimates[0]
        errors = {"units": first.units_error, "seeds": first.seeds_error}
        noise = " and ".join(name for name, error in errors.items() if error is not None)
        others = ", ".join(map(str, self.contenders[1:]))
        level = f"{100 * (1 - LEVEL):.0f}%" + (f", noise over {noise}" if noise else "")
        return f"Trials that cannot be separated from trial {self.best} ({level}): {others or 'none'}" + (
            f"; not compared, for lack of values of the same units: {out}" if self.left_out else ""
        )


def of_sweep(folder: Path, trials: Sequence[FrozenTrial], objective: Objective) -> Selection | None:
    """The selection among a sweep's ``trials``. It is computed once for each state of the trials.

    None if no trial is complete.
    """
    complete = tuple((trial.number, *trial.values) for trial in trials if trial.state.name == "COMPLETE")
    state = (objective, unit_values.size(folder), complete)
    if folder not in _latest or _latest[folder][0] != state:
        _latest[folder] = (state, select(candidates(trials, objective, unit_values.read(folder)), objective))
    return _latest[folder][1]


_latest: dict[Path, tuple[Any, Selection | None]] = {}


def candidates(
    trials: Sequence[FrozenTrial], objective: Objective, units: Mapping[tuple[int, int], UnitValues]
) -> list[Candidate]:
    """The complete trials that violate no constraint, by the value of their first run, best first.

    The repeats of a finalist are among its seeds. It violates the constraints that its mean over them violates.
    """
    complete = []
    again = [trial for trial in trials if REPEAT in trial.user_attrs]
    for trial in ranked(trials, objective):
        values = tuple(seed["values"][0] for seed in seed_results(trial)) or (trial.values[0],)
        keys = [(trial.number, seed) for seed in range(len(values))]
        value = trial.values[0]
        if further := repeats(again, trial):
            values = (*values, *(repeat.values[0] for repeat in further))
            keys += [(repeat.number, 0) for repeat in further]
            value = math.fsum(values) / len(values)
        each = [units[key] for key in keys if key in units]
        complete.append(Candidate(trial.number, value, values, _mean(each) if len(each) == len(keys) else None))
    return complete


def select(complete: Sequence[Candidate], objective: Objective) -> Selection | None:
    """The selection among ``complete``, best first. None if there is no candidate."""
    if not complete:
        return None
    import numpy as np

    kinds = Counter(one.ids for one in complete[:MOST] if one.ids)
    ids = kinds.most_common(1)[0][0] if kinds else None
    compared = [i for i, one in enumerate(complete[:MOST]) if one.ids == ids]
    left_out = tuple(one.trial for one in complete[:MOST] if one.ids != ids)
    spread = _seed_spread(complete)
    if spread is None and ids is None:
        return Selection(complete[0].trial)
    sign = 1.0 if objective.direction == "max" else -1.0
    values = sign * np.array([one.value for one in complete])
    counts = np.array([len(one.seeds) for one in complete])
    over_seeds = np.zeros(len(complete)) if spread is None else spread[0] ** 2 / counts
    over_units = np.zeros(len(complete))
    total, matrix = 1, np.zeros((len(compared), 2))
    if ids is not None:
        total = ids[0]
        matrix = sign * np.stack([complete[i].units.values for i in compared])  # type: ignore[union-attr]
        own = _own_variances(matrix) / total
        over_units += np.median(own)  # of those without units as well
        over_units[compared] = own
    estimates, order = _shrunk(values, over_units + over_seeds)
    first = int(order[0])
    inside = []
    if first in compared:
        chance = _contenders(values[compared], matrix, total, over_seeds[compared], spread[1] if spread else 0)
        inside = [complete[i].trial for i, is_one in zip(compared, chance) if is_one]
    ordered = tuple(
        Estimate(
            complete[i].trial,
            sign * float(estimates[i]),
            float(np.sqrt(over_units[i])) if ids and i in compared and len(compared) > 1 else None,
            float(np.sqrt(over_seeds[i])) if spread else None,
        )
        for i in order
    )
    contenders = tuple(dict.fromkeys([complete[first].trial, *inside])) if inside else None
    return Selection(complete[first].trial, contenders, ordered, left_out)


def _mean(each: Sequence[UnitValues]) -> UnitValues | None:
    """The mean over seeds; None unless all are values of the same units."""
    if not each or any((one.total, one.ids) != (each[0].total, each[0].ids) for one in each):
        return None
    import numpy as np

    return UnitValues(each[0].total, each[0].ids, np.mean([one.values for one in each], axis=0))


def _seed_spread(complete: Sequence[Candidate]) -> tuple[float, int] | None:
    """Standard deviation over seeds within trials and its degrees of freedom. None without repeated seeds."""
    freedom = sum(len(one.seeds) - 1 for one in complete)
    if not freedom:
        return None
    means = [math.fsum(one.seeds) / len(one.seeds) for one in complete]
    squares = math.fsum((value - mean) ** 2 for one, mean in zip(complete, means) for value in one.seeds)
    return math.sqrt(squares / freedom), freedom


def _own_variances(matrix: Any) -> Any:
    """The variance over units of each trial, (trials,), without the part that all trials share.

    ``matrix``: (trials, units). Two trials have equal variances, since only their difference is seen.
    """
    import numpy as np

    trials, units = matrix.shape
    if trials == 1:
        return np.zeros(1)
    centred = matrix - matrix.mean(axis=0) - matrix.mean(axis=1, keepdims=True) + matrix.mean()
    squares = (centred**2).sum(axis=1) / (units - 1)
    typical = squares.sum() / (trials - 1)
    if trials == 2:
        return np.full(2, typical)
    own = np.maximum(trials / (trials - 2) * (squares - typical / trials), 0.0)
    known = units * (trials - 2) / trials
    return (known * own + PRIOR_UNITS * np.median(own)) / (known + PRIOR_UNITS)


def _contenders(values: Any, matrix: Any, total: int, over_seeds: Any, freedom: int) -> list[bool]:
    """Whether each trial cannot be separated from the best one. ``matrix`` has their values of units."""
    import numpy as np

    covariance = np.atleast_2d(np.cov(matrix)) / total
    variances = np.diag(covariance) + over_seeds
    errors = np.sqrt(np.maximum(variances[:, None] + variances[None, :] - 2 * covariance, 0))
    noise = _resampled(matrix, total, over_seeds, freedom)
    units = matrix.shape[1] if matrix.any() else None
    return [_is_contender(i, values, errors, noise, units) for i in range(len(values))]


def _resampled(matrix: Any, total: int, over_seeds: Any, freedom: int) -> Any:
    """Errors of the values in resamples of units, with those of seeds added, (trials, resamples)."""
    import numpy as np

    rng = np.random.default_rng(0)
    size = matrix.shape[1]
    centred = matrix - matrix.mean(axis=1, keepdims=True)
    noise = np.empty((len(matrix), RESAMPLES))
    for start in range(0, RESAMPLES, 250):
        weights = rng.multinomial(size, np.full(size, 1 / size), 250)
        noise[:, start : start + 250] = centred @ weights.T / size
    # From the units kept to all. Their variances are estimates: with few units the quantiles are Student's.
    noise *= np.sqrt(size / (size - 1) * size / total * (size - 1) / rng.chisquare(size - 1, RESAMPLES))
    if freedom:  # the spread over seeds is itself estimated
        spread = np.sqrt(freedom / rng.chisquare(freedom, RESAMPLES))
        noise += np.sqrt(over_seeds)[:, None] * rng.standard_normal(noise.shape) * spread
    return noise


def _is_contender(i: int, values: Any, errors: Any, noise: Any, units: int | None) -> bool:
    """Whether no other trial is better than trial ``i`` by more than noise explains."""
    import numpy as np
    from scipy.special import stdtrit

    others = errors[i] > 0
    certain = ~others & (values > values[i])  # without noise between them, a better one is better
    if certain.any() or not others.any():
        return not certain.any()
    quantile = np.quantile(((noise[others] - noise[i]) / errors[i][others, None]).max(axis=0), 1 - LEVEL)
    if units is not None and units < RESAMPLED_FROM:
        quantile = max(quantile, stdtrit(units - 1, 1 - LEVEL / others.sum()))
    return bool(((values[others] - values[i]) / errors[i][others]).max() <= quantile)


def _shrunk(values: Any, noise: Any) -> tuple[Any, list[int]]:
    """The values shrunk towards their median by their ``noise`` (variances), and their order, the best first.

    The spread of the prior is that of the better half: failed configurations do not widen it, and a trial that is far
    better than all others is hardly shrunk. Where the noise explains all differences, the estimates are equal. Then
    the order is that of the smallest spread: by the distance from the median over the noise, then by the value.
    """
    import numpy as np

    middle = float(np.median(values))
    better = values > middle
    between = max(0.0, float(((values - middle) ** 2 - noise)[better].mean())) if better.any() else 0.0
    total = between + noise
    estimates = middle + (values - middle) * np.divide(between, total, out=np.ones_like(values), where=total > 0)
    ratios = np.divide(values - middle, noise, out=np.zeros_like(values), where=noise > 0)
    return estimates, [int(i) for i in np.lexsort((-values, -ratios, -estimates))]
