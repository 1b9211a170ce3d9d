"""The interface for notebooks: runs and sweeps with the options of the command line.

>>> from orchestrator import run, sweep, load_model
>>> result = run("recommender", dataset="synthetic", epochs=5)
>>> result.metrics["test/ndcg_at_20"], result.history()
>>> best = sweep("recommender", trials=8, register="rec").trials()
>>> load_model("rec/1").predict(users)

The commands ``run`` and ``sweep`` take their options from these signatures. Large packages are imported in the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.config import options
from orchestrator.config.options import (
    RESOURCES,
    Given,
    changed,
    collects_arguments,
    named_code,
    options_of,
    resumable,
    resume_takes,
)
from orchestrator.errors import UserError, resume_conflict

if TYPE_CHECKING:
    from orchestrator.runs.session import Result
    from orchestrator.storage.settings import Settings

ADDRESSES = ("tracking", "experiment", "storage", "ray_address")


@collects_arguments
def run(
    given: Given,
    /,
    workload: str | None = None,
    *,
    config: options.Config = None,
    preset: options.Preset = None,
    trial_timeout: options.TrialTimeout = None,
    profile: options.Profile = None,
    seed: options.Seed = None,
    local: options.Local = True,
    workers: options.Workers = None,
    gpus_per_worker: options.Gpus = None,
    cpus_per_worker: options.Cpus = None,
    max_gpus: options.MaxGpus = None,
    resume: options.Resume = None,
    origin: options.Origin = None,
    name: options.Name = None,
    register: options.Register = None,
    tracking: options.Tracking = None,
    experiment: options.Experiment = None,
    storage: options.Storage = None,
    ray_address: options.RayAddress = None,
    **settings_of_the_workload: Any,
) -> Result:
    """Run one experiment. Other keywords are parameters of the workload and keys of the plan (``lr=0.01, epochs=5``).

    It runs in this process by default, with ``local=False`` through Ray Train. ``resume`` (an id, or ``latest``)
    continues an interrupted run; it allows only resources, such as ``workers``. ``origin`` is a run whose state this
    one goes on from (``--from`` of the command), with its workload and settings where none are given. Raises UserError,
    RunFailed and Interrupted.
    """
    from orchestrator.console import Console
    from orchestrator.runs import driver
    from orchestrator.storage import run_lookup
    from orchestrator.sweeps import request

    settings = _settings(given)
    if resume is not None:
        _check_alone(run, given)
        folder = run_lookup.find(settings.storage, resume, "run")
        return driver.resume(folder, settings, Console(), {name: given[name] for name in RESOURCES})
    named = request.by_name(given, python=True)
    console = Console()
    spec = request.experiment(workload, settings, overrides=settings_of_the_workload, say=console.say, **named)
    chosen = driver.Options(local=local, register=register, name=name, trial_timeout=trial_timeout, profile=profile)
    return driver.run(spec, settings, chosen, console)


@collects_arguments
def sweep(
    given: Given,
    /,
    workload: str | None = None,
    *,
    config: options.Config = None,
    preset: options.Preset = None,
    trials: options.Trials = None,
    space: options.Space = None,
    sampler: options.Sampler = None,
    scheduler: options.Scheduler = None,
    ordered: options.Ordered = None,
    seeds: options.Seeds = None,
    finalists: options.Finalists = None,
    finalist_seeds: options.FinalistSeeds = None,
    select: options.Select = None,
    warm_start: options.WarmStart = (),
    concurrency: options.Concurrency = None,
    pack: options.Pack = None,
    time_budget: options.TimeBudget = None,
    max_device_hours: options.MaxDeviceHours = None,
    max_cost: options.MaxCost = None,
    constraint: options.Constraint = (),
    until_gain: options.UntilGain = None,
    max_failures: options.MaxFailures = None,
    trial_timeout: options.TrialTimeout = None,
    seed: options.Seed = None,
    local: options.Local = True,
    workers: options.Workers = None,
    gpus_per_worker: options.Gpus = None,
    cpus_per_worker: options.Cpus = None,
    max_gpus: options.MaxGpus = None,
    resume: options.Resume = None,
    origin: options.Origin = None,
    more_trials: options.MoreTrials = 0,
    retry_failed: options.RetryFailed = False,
    keep: options.Keep = None,
    name: options.Name = None,
    register: options.Register = None,
    tracking: options.Tracking = None,
    experiment: options.Experiment = None,
    storage: options.Storage = None,
    ray_address: options.RayAddress = None,
    **settings_of_the_workload: Any,
) -> Result:
    """Search hyperparameters. Other keywords are fixed parameters and plan keys. ``.trials()`` is a DataFrame.

    ``resume`` continues a sweep; it allows ``more_trials``, ``retry_failed``, resources, and ``space``, ``sampler`` and
    ``scheduler`` if your files of these have moved. Raises UserError, RunFailed and Interrupted.
    """
    from orchestrator.console import Console
    from orchestrator.runs import driver
    from orchestrator.storage import run_lookup
    from orchestrator.sweeps import request
    from orchestrator.sweeps import sweep as sweeps

    settings = _settings(given)
    if resume is not None:
        code = named_code(given)
        _check_alone(sweep, given, "more_trials", "retry_failed", *code)
        resources = {name: given[name] for name in resumable(sweep=True)}
        resume_options = sweeps.ResumeOptions(more_trials, retry_failed, resources, **code)
        return sweeps.resume(run_lookup.find(settings.storage, resume, "sweep"), settings, Console(), resume_options)
    if more_trials or retry_failed:
        raise UserError("more_trials and retry_failed continue a sweep", fix="Name it with resume=ID")
    named = request.by_name(given, python=True)
    console = Console()
    spec = request.sweep(workload, settings, overrides=settings_of_the_workload, say=console.say, **named)
    chosen = driver.Options(local=local, register=register, name=name, keep=keep or "winner")
    return sweeps.sweep(spec, settings, chosen, console)


def load_model(reference: str, *, tracking: str | None = None) -> Any:
    """Load the MLflow model ``NAME@alias`` or ``NAME/version``."""
    from orchestrator.registry import models as registry
    from orchestrator.storage.settings import resolve

    settings = resolve({"tracking": tracking})
    return registry.load(settings, registry.resolve(settings, reference))


def _settings(given: Given) -> Settings:
    from orchestrator.storage.settings import resolve

    if given["ray_address"] and given["local"] and given["resume"] is None:
        raise UserError("A local run uses no Ray", got="ray_address and local=True", fix="Set local=False")
    return resolve({name: given[name] for name in ADDRESSES})


def _check_alone(call: Callable[..., Result], given: Given, *allowed: str) -> None:
    """Raise UserError if options other than ``resume``, addresses, resources and those ``allowed`` are given."""
    sweep = "more_trials" in allowed
    allowed = (*allowed, *resumable(sweep=sweep))
    defaults = {"workload": None} | {name: option.default for name, option in options_of(call).items()}
    named = changed(given, defaults, {"resume", *ADDRESSES, *allowed})
    if others := [*named, *given["settings_of_the_workload"]]:
        raise resume_conflict("resume", others, resume_takes(str, sweep=sweep))
