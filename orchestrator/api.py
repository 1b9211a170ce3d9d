"""The interface for notebooks: runs and sweeps with the options of the command line.

>>> from orchestrator import run, sweep, load_model
>>> result = run("recommender", dataset="synthetic", epochs=5)
>>> result.metrics["test/ndcg_at_20"], result.history()
>>> best = sweep("recommender", trials=8, register="rec").trials()
>>> load_model("rec/1").predict(users)
>>> load_result("latest").trials()

The commands ``run`` and ``sweep`` take their options from these signatures. Large packages are imported in the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import options
from orchestrator.config.options import (
    ADDRESSES,
    OPTIONS,
    Given,
    collects_arguments,
    flag_of,
    named_code,
    resumable,
    resume_takes,
)
from orchestrator.errors import UserError, check_text, resume_conflict, short_repr

if TYPE_CHECKING:
    from orchestrator.config.spec import ExperimentSpec, SweepSpec
    from orchestrator.console import Console
    from orchestrator.runs.session import Result
    from orchestrator.storage.settings import Settings

OF_COMMANDS: Given = {"local": False, "warm_start": None, "constraint": None}
"""Defaults of the commands that differ from those in notebooks."""


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
    return _in_notebook("run", given)


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
    return _in_notebook("sweep", given)


def load_model(reference: str, *, tracking: str | None = None) -> Any:
    """Load the MLflow model ``NAME@alias`` or ``NAME/version``. Raises UserError."""
    from orchestrator.registry import prediction
    from orchestrator.storage.settings import resolve
    from orchestrator.tracking.mlflow_globals import users_env

    if not isinstance(reference, str):
        allowed = "NAME@ALIAS or NAME/VERSION"
        raise UserError("The model is not given by its name", got=short_repr(reference), allowed=allowed)
    check_text("An argument", reference)
    with users_env():
        return prediction.load(resolve({"tracking": None if tracking is None else str(tracking)}), reference)


def load_result(reference: str = "latest", *, storage: str | Path | None = None) -> Result:
    """The result of a run or sweep that has ended, as ``run`` or ``sweep`` returned it, in a later notebook.

    ``reference`` is ``latest``, an id or an MLflow run id, also of what a command or a job has trained. Raises
    UserError for an unknown one, and one without a result.
    """
    from orchestrator.runs.session import Result
    from orchestrator.storage import commands, run_lookup
    from orchestrator.storage.settings import resolve

    if not isinstance(reference, str):
        raise UserError("The run is not given by its id", got=short_repr(reference), allowed="latest, or an id")
    check_text("An argument", [reference, storage])
    folder = run_lookup.find(resolve({"storage": None if storage is None else str(storage)}).storage, reference)
    if not (recorded := folder.result()):
        what = f"{folder.id} has no result: it is {folder.status()}"
        raise UserError(what, fix=f"Look at it: {commands.for_run(folder.path, 'status')}")
    return Result.from_json(recorded, folder.path)


def _in_notebook(verb: str, given: Given) -> Result:
    from orchestrator.console import Console
    from orchestrator.storage.settings import resolve
    from orchestrator.tracking.mlflow_globals import users_env

    settings = resolve({name: given[name] for name in ADDRESSES})
    workload, overrides = given["workload"], given["settings_of_the_workload"]
    with users_env():
        return train(verb, given, settings, Console(), workload, overrides, python=True)


def train(
    verb: str,
    given: Given,
    settings: Settings,
    console: Console,
    workload: str | None,
    overrides: Mapping[str, Any],
    *,
    words: Sequence[str] = (),
    python: bool = False,
    before_start: Callable[[ExperimentSpec | SweepSpec], None] = lambda spec: None,
) -> Result:
    """Carry out ``run`` or ``sweep``, begun or resumed, with the options ``given`` by name.

    ``words`` are those of a command line, ``python`` says that errors name keywords and not flags. ``before_start`` is
    called with the spec of what begins. Packages are imported late: an error in the options is reported before PyTorch
    is loaded.
    """
    from orchestrator.storage import run_lookup
    from orchestrator.sweeps import request

    is_sweep = verb == "sweep"
    shown: Callable[[str], str] = str if python else flag_of
    more = ("more_trials", "retry_failed") if is_sweep else ()
    if given["resume"] is not None:
        code = named_code(given) if is_sweep else {}
        resources = {name: given[name] for name in resumable(sweep=is_sweep)}
        defaults = {"workload": None} | {name: option.default for name, option in OPTIONS[verb].items()}
        defaults |= {} if python else OF_COMMANDS
        allowed = {"resume", *ADDRESSES, *more, *code, *resources}
        changed = [name for name in defaults if name not in allowed and given.get(name) != defaults[name]]
        if others := [*words, *map(shown, changed), *(overrides if python else ())]:
            raise resume_conflict(shown("resume"), others, resume_takes(shown, sweep=is_sweep))
        if is_sweep:
            from orchestrator.sweeps import sweep as sweeps

            again = sweeps.ResumeOptions(given["more_trials"], given["retry_failed"], resources, **code)
            return sweeps.resume(run_lookup.find(settings.storage, given["resume"], "sweep"), settings, console, again)
        folder = run_lookup.find(settings.storage, given["resume"], "run")
        from orchestrator.runs import driver

        return driver.resume(folder, settings, console, resources)
    if given["ray_address"] and given["local"]:
        got = "ray_address and local=True" if python else "--ray-address and --local"
        raise UserError(
            "A local run uses no Ray", got=got, fix="Set local=False" if python else "Leave out one of them"
        )
    if any(given[name] for name in more):
        example = "resume=ID" if python else "--resume ID"
        raise UserError(f"{' and '.join(map(shown, more))} continue a sweep", fix=f"Name it with {example}")
    make: Callable[..., Any] = request.sweep if is_sweep else request.experiment
    named = request.by_name(given, python=python)
    spec = make(workload, settings, overrides=overrides, say=console.say, **named)
    from orchestrator.runs import driver

    names = ("local", "register", "name", *(["keep"] if is_sweep else ["trial_timeout", "profile"]))
    options = driver.Options(**{name: given[name] for name in names if given[name] is not None})
    before_start(spec)
    if not is_sweep:
        return driver.run(spec, settings, options, console)
    from orchestrator.sweeps import sweep as sweeps

    return sweeps.sweep(spec, settings, options, console)
