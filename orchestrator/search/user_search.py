"""Samplers and schedulers of users: subclasses of Optuna's BaseSampler and BasePruner, named by ``module:Class``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from orchestrator.config import user_code
from orchestrator.config.spec import Search
from orchestrator.errors import UserError, one_line

T = TypeVar("T")

STOPPED = "ended by sampler"
"""Attribute of the study: a sampler has called its ``stop()``, as BruteForceSampler does after the last point."""


class CodeFailed(UserError):
    """A sampler or scheduler of the user failed. Every other trial would fail, too."""


def named(search: Search) -> list[str]:
    """The code of users that a search executes: its space, its sampler and its scheduler, where they are named."""
    return [text for text in (search.space, search.sampler, search.scheduler) if user_code.is_named(text)]


def complete(search: Search) -> Search:
    """``search`` with absolute paths. Loads and builds its sampler and scheduler once, and raises UserError."""
    fields = {name: user_code.absolute(getattr(search, name)) for name in ("space", "sampler", "scheduler")}
    if user_code.is_named(fields["sampler"]):
        sampler(fields["sampler"], seed=0)
    if user_code.is_named(fields["scheduler"]):
        pruner(fields["scheduler"])
    # The others keep that they were not given: what is not given may be replaced.
    return search.model_copy(update={name: text for name, text in fields.items() if text != getattr(search, name)})


def sampler(text: str, seed: int) -> BaseSampler:
    """The sampler of one trial; it gets ``seed`` if its class takes one. Raises UserError."""
    return _Sampler(text, _built(text, BaseSampler, "sampler", seed=seed))


def pruner(text: str) -> BasePruner:
    """The scheduler. Raises UserError."""
    return _built(text, BasePruner, "scheduler")


def prunes(text: str, pruner: BasePruner, study: Study, trial: FrozenTrial) -> bool:
    """Whether the scheduler ends a trial that has reported. Raises UserError when it fails."""
    return _running(text, "scheduler", lambda: bool(pruner.prune(study, trial)))


def _built(text: str, base: type[T], kind: str, **given: Any) -> T:
    cls = user_code.load_class(text, base, kind)
    taken = inspect.signature(cls).parameters
    arguments = {name: value for name, value in given.items() if name in taken}
    return _running(text, kind, lambda: cls(**arguments))


def _running(text: str, kind: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:
        raise CodeFailed(f"The {kind} {text} failed: {type(error).__name__}: {one_line(error)}") from error


class _Sampler(BaseSampler):  # type: ignore[misc]
    """Delegates to a user's sampler; its errors are sentences."""

    def __init__(self, text: str, own: BaseSampler) -> None:
        self._text = text
        self._own = own

    def _call(self, method: str, *arguments: Any) -> Any:
        return _running(self._text, "sampler", lambda: getattr(self._own, method)(*arguments))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Mapping[str, Any]:
        suggested: Mapping[str, Any] = self._call("infer_relative_search_space", study, trial)
        return suggested

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Mapping[str, Any]) -> Mapping[str, Any]:
        suggested: Mapping[str, Any] = self._call("sample_relative", study, trial, search_space)
        return suggested

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        return self._call("sample_independent", study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._call("before_trial", study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: Any, values: Any) -> None:
        self._call("after_trial", _Stoppable(study), trial, state, values)


class _Stoppable:
    """A study whose ``stop()`` is recorded: Optuna's works only within its own loop."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def stop(self) -> None:
        self._study.set_user_attr(STOPPED, True)
