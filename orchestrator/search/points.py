"""Points of a search space that a person or a publication names, in place of the sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from pydantic import BaseModel

from orchestrator.config import workload_loader
from orchestrator.config.parsing import validate
from orchestrator.config.spec import DATA, SweepSpec
from orchestrator.errors import UserError, unknown
from orchestrator.search import spaces
from workloads.published import Table

_OUTSIDE = object()


def published(spec: SweepSpec) -> dict[str, dict[str, Any]]:
    """Published settings as points of the search space, by name: the workload's presets, tables and defaults.

    A row of a table is left out unless a trial can have all of its settings: those that are neither searched nor fixed
    must be what the space sets, or the defaults. Of a preset, numbers that are neither searched nor fixed may differ.
    The data are not compared. Of equal points the first one is named.
    """
    space = Points(spec)
    points: dict[str, dict[str, Any]] = {}
    for name, settings, exact in _settings(spec.workload):
        point = space.of(settings, exact)
        if point and point not in points.values():
            points[name] = point
    return points


def _settings(workload: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Names and settings of presets, rows of tables, and the defaults, and whether a trial must have all of them."""
    for name, preset in workload_loader.presets(workload).items():
        yield name, preset.settings, False
    for table in workload_loader.entry(workload).load_published():
        if isinstance(table, Table) and table.regime.workload == workload:
            for row in (row for cell in table.places for row in table.rows(*cell)):
                where = " ".join(row.where.values())
                yield f"{table.id} {row.method} ({where})", row.settings.params, True
    yield "defaults", {}, True


class Points:
    """Points of the search space of a sweep."""

    def __init__(self, spec: SweepSpec) -> None:
        self._fixed = spec.fixed
        self._seed = spec.seed
        self._space = spaces.load(spec.workload, spec.search.space)
        self._model = workload_loader.params(spec.workload)
        self._survey = spaces.probe(self._space, spec.fixed, self._model, spec.seed)
        self._defaults = self._model().model_dump(mode="json")

    def checked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """``params``, some of the searched ones, as values of the search space.

        Texts stand for the values that they name. Raises UserError if the space has no such point.
        """
        accepted = {}
        ranges = self._ranges(params)
        for name, value in params.items():
            if name in self._fixed:
                raise UserError(f"{name} is fixed in this sweep", got=value, allowed=self._fixed[name])
            if not ranges[name]:
                raise unknown("searched parameter", name, self._survey.distributions)
            accepted[name] = _first(ranges[name], value)
            if accepted[name] is _OUTSIDE:
                allowed = spaces.Survey(ranges, conditional=False).text()[name]
                raise UserError(f"{name} is outside the search space", got=value, allowed=allowed)
        self._trial(accepted)
        here = spaces.distributions_at(self._space, self._fixed, accepted)
        if here and (absent := next((name for name in accepted if name not in here), None)):
            raise UserError(
                f"{absent} is not searched together with the other values", got=f"{absent}={accepted[absent]}",
                allowed=", ".join(here), fix="Leave it out, or add the values that it depends on",
            )  # fmt: skip
        return accepted

    def of(self, settings: Mapping[str, Any], exact: bool) -> dict[str, Any] | None:
        """The point at which a trial has ``settings`` and otherwise defaults. None if there is none.

        Unless ``exact``, only those that are fixed and those that are no numbers are compared.
        """
        complete = {**self._defaults, **settings}
        try:
            point = self.checked({name: complete[name] for name in self._survey.distributions if name in complete})
            trained = self._trial(point).model_dump(mode="json")
        except UserError:
            return None
        compared = [name for name in settings if name in trained and not name.startswith(DATA)]
        if not exact:
            compared = [name for name in compared if name in self._fixed or isinstance(settings[name], str | bool)]
        return point if all(str(trained[name]) == str(settings[name]) for name in compared) else None

    def _ranges(self, params: Mapping[str, Any]) -> dict[str, list[BaseDistribution]]:
        """The distributions of each parameter: those of the survey, which may lack a rare branch, and of its branch."""
        ranges = {name: list(self._survey.distributions.get(name, ())) for name in params}
        seen = {name: _first(ranges[name], value) for name, value in params.items()}
        inside = {name: value for name, value in seen.items() if value is not _OUTSIDE}
        for name, distribution in spaces.distributions_at(self._space, self._fixed, inside).items():
            if name in ranges and distribution not in ranges[name]:
                ranges[name].append(distribution)
        return ranges

    def _trial(self, point: Mapping[str, Any]) -> BaseModel:
        """The parameters of a trial at ``point``. Raises UserError if they are not valid."""
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=self._seed))
        study.enqueue_trial(dict(point))
        return validate(self._model, spaces.suggest(self._space, study.ask(), self._fixed), "parameter")


def _first(distributions: Iterable[BaseDistribution], value: Any) -> Any:
    values = (contained(distribution, value) for distribution in distributions)
    return next((value for value in values if value is not _OUTSIDE), _OUTSIDE)


def contained(distribution: BaseDistribution, value: Any) -> Any:
    """``value``, or the one that its text stands for, with the type that ``distribution`` has.

    A sentinel if the distribution does not contain it.
    """
    if isinstance(distribution, CategoricalDistribution):
        return next((choice for choice in distribution.choices if _equal(choice, value)), _OUTSIDE)
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not is_within(value, distribution):
        return _OUTSIDE
    return int(value) if isinstance(distribution, IntDistribution) else float(value)


def is_within(value: Any, distribution: BaseDistribution) -> bool:
    """Whether ``distribution`` contains ``value``: within its bounds, on its step, one of its choices."""
    try:
        optuna.create_trial(params={"x": value}, distributions={"x": distribution}, value=0.0)
    except (ValueError, TypeError):  # TypeError: not a number
        return False
    return True


def _equal(choice: Any, value: Any) -> bool:
    if isinstance(value, str):
        return value in (choice, str(choice), str(choice).lower())
    return bool(choice == value) and isinstance(choice, bool) == isinstance(value, bool)
