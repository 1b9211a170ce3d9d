"""From a notebook: the same runs and sweeps as on the command line, by the same names, without exit codes.

>>> from orchestrator import run, sweep, load_model
>>> result = run("recommender", dataset="synthetic", epochs=5)
>>> result.metrics["test/ndcg_at_20"], result.history()
>>> best = sweep("recommender", trials=8, register="rec").trials()
>>> load_model("rec/1").predict(users)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.console import Console
from orchestrator.errors import UserError, goes_on
from orchestrator.runs.session import Result
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import request

ADDRESSES = ("tracking", "experiment", "storage", "ray_address")


def run(
    workload: str | None = None,
    *,
    local: bool = True,
    seed: int | None = None,
    config: str | Path | None = None,
    preset: str | None = None,
    resume: str | None = None,
    name: str | None = None,
    register: str | None = None,
    workers: int | str | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    max_gpus: int | None = None,
    tracking: str | None = None,
    experiment: str | None = None,
    storage: str | None = None,
    ray_address: str | None = None,
    **settings_of_the_workload: Any,
) -> Result:
    """Run one experiment; keywords beyond the named ones are parameters and plan keys (``lr=0.01, epochs=5``).

    In this process by default; ``local=False`` goes through Ray Train. ``resume`` (an id, or ``latest``) goes on with
    one, by itself. Raises UserError, RunFailed and Interrupted.
    """
    given = dict(locals())
    from orchestrator.runs import driver
    from orchestrator.storage import records

    settings = _settings(given)
    if resume is not None:
        _check_alone(run, given)
        return driver.resume(records.find(settings.storage, resume, "run"), settings, Console())
    asked = request.by_name(given, python=True)
    spec = request.experiment(workload, settings, overrides=settings_of_the_workload, **asked)
    return driver.run(spec, settings, driver.Options(local=local, register=register, name=name), Console())


def sweep(
    workload: str | None = None,
    *,
    trials: int | None = None,
    space: str | None = None,
    sampler: str | None = None,
    scheduler: str | None = None,
    seeds: int | None = None,
    warm_start: Sequence[str] = (),
    concurrency: int | None = None,
    pack: int | str | None = None,
    time_budget: float | None = None,
    max_device_hours: float | None = None,
    trial_timeout: float | None = None,
    local: bool = True,
    seed: int | None = None,
    config: str | Path | None = None,
    preset: str | None = None,
    resume: str | None = None,
    more_trials: int = 0,
    retry_failed: bool = False,
    name: str | None = None,
    keep: str = "winner",
    register: str | None = None,
    workers: int | str | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    max_gpus: int | None = None,
    tracking: str | None = None,
    experiment: str | None = None,
    storage: str | None = None,
    ray_address: str | None = None,
    **settings_of_the_workload: Any,
) -> Result:
    """Search hyperparameters; keywords beyond the named ones are held fixed. ``.trials()`` is a DataFrame.

    ``resume`` goes on with a sweep; beside it may stand ``more_trials``, ``retry_failed``, and ``space`` where the file
    of its search space has moved.
    """
    given = dict(locals())
    from orchestrator.runs import driver
    from orchestrator.storage import records
    from orchestrator.sweeps import sweep as sweeps

    settings = _settings(given)
    if resume is not None:
        moved = space if space and ":" in space else None
        _check_alone(sweep, given, "more_trials", "retry_failed", *(["space"] if moved else []))
        again = sweeps.Again(more_trials, retry_failed, moved)
        return sweeps.resume(records.find(settings.storage, resume, "sweep"), settings, Console(), again)
    if more_trials or retry_failed:
        raise UserError("more_trials and retry_failed go on with a sweep", fix="Name it with resume=ID")
    asked = request.by_name(given, python=True)
    spec = request.sweep(workload, settings, overrides=settings_of_the_workload, **asked)
    options = driver.Options(local=local, register=register, name=name, keep=keep)
    return sweeps.sweep(spec, settings, options, Console())


def load_model(reference: str, *, tracking: str | None = None) -> Any:
    """The MLflow model ``NAME@alias`` or ``NAME/version``."""
    from orchestrator.registry import models as registry
    from orchestrator.tracking.mlflow_globals import speaking_to

    settings = resolve({"tracking": tracking})
    uri = registry.resolve(settings, reference)
    import mlflow

    with speaking_to(settings.tracking):
        return mlflow.pyfunc.load_model(uri)


def _settings(given: Mapping[str, Any]) -> Settings:
    if given["ray_address"] and given["local"] and given["resume"] is None:
        raise UserError("A local run uses no Ray", got="ray_address and local=True", fix="Set local=False")
    return resolve({name: given[name] for name in ADDRESSES})


def _check_alone(call: Callable[..., Result], given: Mapping[str, Any], *beside: str) -> None:
    """Raises UserError where more than ``resume``, addresses and what may stand ``beside`` it was given."""
    allowed = {"resume", "settings_of_the_workload", *ADDRESSES, *beside}
    known = inspect.signature(call).parameters
    named = [name for name, value in given.items() if name not in allowed and value != known[name].default]
    if others := [*named, *given["settings_of_the_workload"]]:
        raise goes_on("resume", others)
