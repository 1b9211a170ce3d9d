"""The grid of a search space: every combination of its discrete parameters, conditional ones included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel

from orchestrator.errors import UserError, one_line
from orchestrator.search import spaces

LIMIT = 100_000


class NoGrid(UserError):
    """A space that has no grid, or one of too many points."""


def points(
    space: spaces.Space, fixed: Mapping[str, Any], most: int | None = None, params: type[BaseModel] | None = None
) -> list[dict[str, Any]]:
    """All points of ``space`` in a fixed order, as parameter values.

    The space is called once per point, since its parameters may depend on earlier values. Raises :class:`NoGrid` for a
    parameter without steps and for a grid of more than ``most`` points, by default :data:`LIMIT`. Raises UserError for
    a point at which the space fails, or gives parameters that are not valid as ``params``.
    """
    most = LIMIT if most is None else most
    points_found: list[dict[str, Any]] = []
    path: list[tuple[int, int]] = []  # choice at each parameter, and number of choices
    while True:
        trial = _Walk(path)
        try:
            values = spaces.suggest(space, trial, fixed)
            if params:
                spaces.validated(values, params)
        except NoGrid:
            raise
        except UserError as error:
            point = ", ".join(f"{name}={value}" for name, value in trial.values.items())
            cause = one_line(error).removeprefix(f"{spaces.FAILED}: ")
            raise UserError(
                f"The search space fails at a point of the grid, {point}: {cause}",
                fix="Let the space leave it out, or mend it",
            ) from None
        points_found.append(trial.values)
        if len(points_found) > most:
            raise NoGrid(f"The grid has more than {most} points", fix="Take larger steps, or another sampler")
        path = trial.path
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return points_found
        choice, size = path.pop()
        path.append((choice + 1, size))


class _Walk:
    """Stands in for an Optuna trial: follows ``path``, then takes the first choices."""

    def __init__(self, path: list[tuple[int, int]]) -> None:
        self._given, self.path = path, []  # type: tuple[list[tuple[int, int]], list[tuple[int, int]]]
        self.values: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self._take(name, CategoricalDistribution(choices))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> Any:
        return self._take(name, IntDistribution(low, high, log, step))

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> Any:
        return self._take(name, FloatDistribution(low, high, log, step))

    def __getattr__(self, name: str) -> Any:
        raise NoGrid(f"A grid has no trial.{name}", fix="Have the space ask for values only, or take another sampler")

    def _take(self, name: str, distribution: BaseDistribution) -> Any:
        if name in self.values:  # suggested twice
            return self.values[name]
        choices = _choices(name, distribution)
        depth = len(self.path)
        choice = self._given[depth][0] if depth < len(self._given) else 0
        self.path.append((choice, len(choices)))
        self.values[name] = choices[choice]
        return choices[choice]


def _choices(name: str, distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if distribution.step is None:
        raise NoGrid(
            f"A grid needs steps, and {name} has none",
            got=f"suggest_float from {distribution.low} to {distribution.high}",
            fix="Give it step=, make it categorical, fix it, or take another sampler",
        )
    count = int((distribution.high - distribution.low) / distribution.step + 1e-9) + 1
    if count > LIMIT:
        raise NoGrid(f"The grid has more than {LIMIT} points in {name} alone", fix="Take larger steps")
    low = distribution.low
    high = distribution.high
    step = distribution.step
    return [min(low + index * step, high) for index in range(count)]  # 0 + 3 * 0.1 is more than 0.3
