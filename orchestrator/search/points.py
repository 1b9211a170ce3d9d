"""Points of a search space that a person or a publication names, in place of the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from orchestrator.config import workload_loader
from orchestrator.config.parsing import validate
from orchestrator.config.spec import SweepSpec
from orchestrator.errors import UserError, unknown
from orchestrator.search import spaces

_OUTSIDE = object()


def checked(spec: SweepSpec, params: Mapping[str, Any]) -> dict[str, Any]:
    """``params``, some of the searched ones, as values of the search space. Raises UserError if it has no such point.

    Texts stand for the values that they name.
    """
    space = spaces.load(spec.workload, spec.search.space)
    model = workload_loader.params(spec.workload)
    survey = spaces.probe(space, spec.fixed, model, spec.seed)
    accepted = {}
    for name, value in params.items():
        if name in spec.fixed:
            raise UserError(f"{name} is fixed in this sweep", got=value, allowed=spec.fixed[name])
        if name not in survey.distributions:
            raise unknown("searched parameter", name, survey.distributions)
        values = (contained(distribution, value) for distribution in survey.distributions[name])
        accepted[name] = next((value for value in values if value is not _OUTSIDE), _OUTSIDE)
        if accepted[name] is _OUTSIDE:
            raise UserError(f"{name} is outside the search space", got=value, allowed=survey.text()[name])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=spec.seed))
    study.enqueue_trial(accepted)
    validate(model, spaces.suggest(space, study.ask(), spec.fixed), "parameter")
    return accepted


def published(spec: SweepSpec) -> dict[str, dict[str, Any]]:
    """The workload's presets and its defaults as points of the search space, by name; those outside are left out.

    Parameters that are neither searched nor fixed have their defaults, so a point has what its preset says of the
    searched ones.
    """
    model = workload_loader.params(spec.workload)
    survey = spaces.probe(spaces.load(spec.workload, spec.search.space), spec.fixed, model, spec.seed)
    defaults = model().model_dump(mode="json")
    named = {name: dict(preset.settings) for name, preset in workload_loader.presets(spec.workload).items()}
    points: dict[str, dict[str, Any]] = {}
    for name, settings in {**named, "defaults": {}}.items():
        complete = {**defaults, **settings}
        if any(str(complete[key]) != str(value) for key, value in spec.fixed.items() if key in settings):
            continue  # another value is fixed
        with suppress(UserError):
            point = checked(spec, {key: complete[key] for key in survey.distributions if key in complete})
            if point and point not in points.values():
                points[name] = point
    return points


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
