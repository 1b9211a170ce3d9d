"""From a notebook: the same runs and sweeps as on the command line, without exit codes.

>>> from orchestrator import run, sweep, load_model
>>> result = run("recommender", dataset="synthetic", epochs=5)
>>> result.metrics["test/ndcg_at_20"], result.history()
>>> best = sweep("recommender", trials=8, register="rec").trials()
>>> load_model("rec/1").predict(users)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator import request
from orchestrator.console import Console
from orchestrator.session import Result
from orchestrator.settings import resolve


def run(
    workload: str,
    *,
    local: bool = True,
    seed: int = 0,
    config: str | None = None,
    name: str | None = None,
    register: str | None = None,
    workers: int | str | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    max_gpus: int | None = None,
    tracking: str | None = None,
    **settings_of_the_workload: Any,
) -> Result:
    """Run one experiment; keywords beyond the named ones are parameters and plan keys (``lr=0.01, epochs=5``).

    In this process by default; ``local=False`` goes through Ray Train. Raises UserError and RunFailed.
    """
    from orchestrator.training import runs

    settings = resolve({"tracking": tracking})
    spec = request.experiment(
        workload,
        settings,
        config=Path(config) if config else None,
        overrides=settings_of_the_workload,
        seed=seed,
        resources={
            "workers": workers,
            "gpus_per_worker": gpus_per_worker,
            "cpus_per_worker": cpus_per_worker,
            "max_gpus": max_gpus,
        },
        local=local,
    )
    return runs.run(spec, settings, runs.Options(local=local, register=register, name=name), Console())


def sweep(
    workload: str,
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
    seed: int = 0,
    config: str | None = None,
    name: str | None = None,
    keep: str = "winner",
    register: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    max_gpus: int | None = None,
    tracking: str | None = None,
    **settings_of_the_workload: Any,
) -> Result:
    """Search hyperparameters; keywords beyond the named ones are held fixed. ``.trials()`` is a DataFrame."""
    from orchestrator import sweeps
    from orchestrator.training import runs

    settings = resolve({"tracking": tracking})
    search = {
        "trials": trials,
        "space": space,
        "sampler": sampler,
        "scheduler": scheduler,
        "seeds": seeds,
        "warm_start": tuple(warm_start) or None,
        "concurrency": concurrency,
        "pack": pack,
        "time_budget": time_budget,
        "max_device_hours": max_device_hours,
        "trial_timeout": trial_timeout,
    }
    spec = request.sweep(
        workload,
        settings,
        config=Path(config) if config else None,
        overrides=settings_of_the_workload,
        seed=seed,
        resources={
            "workers": workers,
            "gpus_per_worker": gpus_per_worker,
            "cpus_per_worker": cpus_per_worker,
            "max_gpus": max_gpus,
        },
        search=search,
        local=local,
    )
    options = runs.Options(local=local, register=register, name=name, keep=keep)
    return sweeps.sweep(spec, settings, options, Console())


def load_model(reference: str, *, tracking: str | None = None) -> Any:
    """The MLflow model ``NAME@alias`` or ``NAME/version``."""
    from orchestrator.registry import models as registry
    from orchestrator.tracking.fluent import speaking_to

    settings = resolve({"tracking": tracking})
    uri = registry.resolve(settings, reference)
    import mlflow

    with speaking_to(settings.tracking):
        return mlflow.pyfunc.load_model(uri)
