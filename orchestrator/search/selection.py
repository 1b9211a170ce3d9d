"""Selection of a winner with the noise of its values in view.

Two kinds of noise are estimated apart. Over units: a validation split is a sample of users, queries or pairs, on which
configurations compare differently than on others. Over seeds: another seed trains another model. With ``x[i, u]`` the
value of trial ``i`` for unit ``u``, averaged over its ``n[i]`` seeds, the difference of two trials has the variance

    var_u(x[i, u] - x[j, u]) / U + s² (1 / n[i] + 1 / n[j])

where ``s²`` is pooled within the trials that have several seeds. A trial is a *contender* if it cannot be separated
from the best: the set of contenders contains the best one with probability 1 - :data:`LEVEL` (Gupta 1965, with the
quantiles of the largest studentised difference by bootstrap over units).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.search.ranking import ranked, repeats
from orchestrator.search.unit_values import UnitValues
from workloads.contract import Objective

if TYPE_CHECKING:
    import numpy as np
    from optuna.trial import FrozenTrial

LEVEL = 0.05
RESAMPLES = 2000
MOST = 100
"""Number of trials, the best ones, that are compared."""


@dataclass(frozen=True)
class Candidate:
    """A complete trial: its value, that of each seed, and the values of units averaged over seeds, if known."""

    trial: int
    value: float
    seeds: tuple[float, ...]
    units: UnitValues | None


@dataclass(frozen=True)
class Selection:
    """The best trial, and what is known of its uncertainty.

    It has the best ``estimate``: its value shrunk towards the median of the trials by its noise, which is what is to be
    expected on other units and seeds. Where all trials have equally many seeds, it has the best value.
    ``contenders`` cannot be separated from it; it is the first of them. ``units_error`` and
    ``seeds_error`` are the standard errors of one trial's value over units, with the part that all trials share
    removed, and over seeds. All are None where no noise is known.
    """

    best: int
    contenders: tuple[int, ...] | None = None
    estimate: float | None = None
    units_error: float | None = None
    seeds_error: float | None = None

    def text(self) -> str:
        """Which other trials are contenders, in a sentence. Empty where no noise is known."""
        if self.contenders is None:
            return ""
        names = {"units": self.units_error, "seeds": self.seeds_error}
        noise = " and ".join(name for name, error in names.items() if error is not None)
        others = ", ".join(map(str, self.contenders[1:]))
        level = f"{100 * (1 - LEVEL):.0f}%, noise over {noise}"
        return f"Trials that cannot be separated from trial {self.best} ({level}): {others or 'none'}"


def candidates(
    trials: Sequence[FrozenTrial], objective: Objective, units: Mapping[tuple[int, int], UnitValues]
) -> list[Candidate]:
    """The complete trials that violate no constraint, by the value of their first run, best first.

    The repeats of a finalist are among its seeds.
    """
    found = []
    for trial in ranked(trials, objective)[:MOST]:
        names = [name for name in trial.user_attrs if name.startswith("seed_") and name != "seed_of"]
        values = tuple(trial.user_attrs[name]["values"][0] for name in names) or (trial.values[0],)
        keys = [(trial.number, seed) for seed in range(len(values))]
        value = trial.values[0]
        if further := repeats(trials, trial):
            values = (*values, *(repeat.values[0] for repeat in further))
            keys += [(repeat.number, 0) for repeat in further]
            value = math.fsum(values) / len(values)
        each = [units[key] for key in keys if key in units]
        found.append(Candidate(trial.number, value, values, _mean(each) if len(each) == len(keys) else None))
    return found


def select(found: Sequence[Candidate], objective: Objective) -> Selection | None:
    """The selection among ``found``, best first. None if there is no candidate."""
    if not found:
        return None
    import numpy as np

    sign = 1.0 if objective.direction == "max" else -1.0
    counts = np.array([len(one.seeds) for one in found])
    spread = _seed_spread(found)
    paired = _paired(found)
    if spread is None and paired is None:
        return Selection(found[0].trial)
    values = sign * np.array([one.value for one in found])
    over_seeds = np.zeros(len(found)) if spread is None else spread[0] ** 2 / counts
    total, matrix = paired if paired else (1, np.zeros((len(found), 2)))
    matrix = sign * matrix
    covariance = np.atleast_2d(np.cov(matrix)) / total
    variances = np.diag(covariance)
    errors = np.sqrt(
        np.maximum(
            variances[:, None] + variances[None, :] - 2 * covariance + over_seeds[:, None] + over_seeds[None, :], 0
        )
    )
    noise = _resampled(matrix, total, over_seeds, spread[1] if spread else 0)
    inside = [i for i in range(len(found)) if _is_contender(i, values, errors, noise)]
    centred = matrix - matrix.mean(axis=0) - matrix.mean(axis=1, keepdims=True) + matrix.mean()
    over_units = float((centred**2).sum() / max(1, (matrix.shape[0] - 1) * (matrix.shape[1] - 1)) / total)
    estimates = _shrunk(values, over_units + over_seeds)
    # Where the noise explains all differences, the estimates are equal: then more seeds, then the value, decide.
    first = max(range(len(found)), key=lambda i: (estimates[i], counts[i], values[i]))
    return Selection(
        found[first].trial,
        tuple(found[i].trial for i in dict.fromkeys([first, *inside])),
        sign * float(estimates[first]),
        None if paired is None else math.sqrt(over_units),
        None if spread is None else math.sqrt(over_seeds[first]),
    )


def _mean(each: Sequence[UnitValues]) -> UnitValues | None:
    """The mean over seeds; None unless all are values of the same units."""
    if not each or any((one.total, one.ids) != (each[0].total, each[0].ids) for one in each):
        return None
    import numpy as np

    return UnitValues(each[0].total, each[0].ids, np.mean([one.values for one in each], axis=0))


def _seed_spread(found: Sequence[Candidate]) -> tuple[float, int] | None:
    """Standard deviation over seeds within trials and its degrees of freedom. None without repeated seeds."""
    freedom = sum(len(one.seeds) - 1 for one in found)
    if not freedom:
        return None
    means = [math.fsum(one.seeds) / len(one.seeds) for one in found]
    squares = math.fsum((value - mean) ** 2 for one, mean in zip(found, means) for value in one.seeds)
    return math.sqrt(squares / freedom), freedom


def _paired(found: Sequence[Candidate]) -> tuple[int, np.ndarray[Any, Any]] | None:
    """Number of all units, and the values (candidates, units). None unless every candidate has the same units."""
    import numpy as np

    kinds = Counter((one.units.total, one.units.ids) if one.units else None for one in found)
    if len(kinds) > 1 or None in kinds:
        return None
    return found[0].units.total, np.stack([one.units.values for one in found if one.units])  # type: ignore[union-attr]


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
    noise *= math.sqrt(size / total)  # from the units kept to all
    if freedom:  # the spread over seeds is itself estimated
        spread = np.sqrt(freedom / rng.chisquare(freedom, RESAMPLES))
        noise += np.sqrt(over_seeds)[:, None] * rng.standard_normal(noise.shape) * spread
    return noise


def _is_contender(i: int, values: Any, errors: Any, noise: Any) -> bool:
    """Whether no other trial is better than trial ``i`` by more than noise explains."""
    import numpy as np

    others = errors[i] > 0
    certain = ~others & (values > values[i])  # without noise between them, a better one is better
    if certain.any() or not others.any():
        return not certain.any()
    quantile = np.quantile(((noise[others] - noise[i]) / errors[i][others, None]).max(axis=0), 1 - LEVEL)
    return bool(((values[others] - values[i]) / errors[i][others]).max() <= quantile)


def _shrunk(values: Any, noise: Any) -> Any:
    """The values shrunk towards their median: a normal prior whose spread is robust to failed configurations."""
    import numpy as np

    middle = float(np.median(values))
    scale = 1.4826 * float(np.median(np.abs(values - middle)))
    between = max(0.0, scale**2 - float(np.median(noise)))
    total = between + np.asarray(noise)
    return middle + (values - middle) * np.divide(between, total, out=np.ones_like(values), where=total > 0)
