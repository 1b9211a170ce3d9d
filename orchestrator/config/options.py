"""The options of ``run`` and ``sweep``, each declared once: type and, for the command line, flag and help.

The functions of ``api.py`` use them as annotations; the commands derive their options from those signatures.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import typer

from orchestrator.config.user_code import is_named
from orchestrator.errors import UserError, check_text, nearest, short_repr, unknown

OPTIONS: dict[str, Mapping[str, inspect.Parameter]] = {}
"""The options of each call of the interface by name, such as ``run``; see :func:`collects_arguments`."""

P = ParamSpec("P")
R = TypeVar("R")

Given: TypeAlias = Mapping[str, Any]
"""The arguments of a call by name, defaults included."""

Words = Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD] key=value ...", show_default=False)]
Config = Annotated[str | Path | None, typer.Option("--config", help="YAML file; key=value words override it.")]
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Published settings (`workloads NAME`); file and words override."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.  [default: 0]")]
Local = Annotated[bool, typer.Option("--local", help="In this process, without Ray.")]
Name = Annotated[
    str | None, typer.Option("--name", help="Id of the run or sweep.  [default: workload, time, four digits]")
]
Register = Annotated[str | None, typer.Option("--register", metavar="NAME", help="Register the model under NAME.")]
Json = Annotated[bool, typer.Option("--json", help="One machine-readable line, last on standard output.")]
Resume = Annotated[
    str | None, typer.Option("--resume", metavar="latest|ID", help="Continue an interrupted run or sweep.")
]
Origin = Annotated[
    str | None,
    typer.Option("--from", metavar="RUN", help="Go on from the state of another run, with its settings where not set."),
]
Workers = Annotated[
    int | str | None,
    typer.Option(
        "--workers", metavar="N|MIN:MAX", help="Processes that train one model (DDP); MIN:MAX is elastic.  [default: 1]"
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-worker", help="GPUs of a worker; a fraction requires one worker.  [default: 1 if available]"
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option("--cpus-per-worker", help="CPUs of a worker.  [default: 1; a run on this machine takes all]"),
]
MaxGpus = Annotated[int | None, typer.Option("--max-gpus", help="GPUs held at once, at most.  [default: all that fit]")]
Tracking = Annotated[
    str | None, typer.Option("--tracking", metavar="URI|none", help="MLflow store.  [default: the embedded one]")
]
Experiment = Annotated[str | None, typer.Option("--experiment", help="MLflow experiment.  [default: the workload]")]
Storage = Annotated[
    str | None,
    typer.Option("--storage", help="Folder or object store of runs and sweeps.  [default: storage in the home]"),
]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help="Ray cluster.  [default: a local one]")]

Trials = Annotated[int | None, typer.Option("--trials", help="Trials in all.  [default: 16; of a grid, every point]")]
Space = Annotated[str | None, typer.Option("--space", help="One of the workload's, or file.py:function.")]
Sampler = Annotated[
    str | None,
    typer.Option("--sampler", help="tpe, gp, cmaes, random, grid, auto, or module:Class.  [default: tpe]"),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="asha, hyperband, median, racing, pbt, none, or module:Class.  [default: asha]"),
]
Ordered = Annotated[
    bool | None,
    typer.Option("--ordered", help="Trials wait at rungs for earlier ones: the same decisions in any order of events."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help="Runs of each configuration; the best mean wins.  [default: 1]")
]
Finalists = Annotated[
    int | None, typer.Option("--finalists", help="Best trials that are repeated with further seeds at the end.")
]
FinalistSeeds = Annotated[
    int | None, typer.Option("--finalist-seeds", help="Seeds of each finalist in all.  [default: 3]")
]
Select = Annotated[
    str | None,
    typer.Option("--select", help="best, or cheapest of those that cannot be separated from it.  [default: best]"),
]
WarmStart = Annotated[
    Sequence[str],
    typer.Option("--warm-start", metavar="SWEEP|published", help="Learn from an earlier sweep; repeatable."),
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", help="Trials at once, at most.  [default: all that fit]")
]
Pack = Annotated[
    int | str | None, typer.Option("--pack", help="Trials trained together: auto, off or how many.  [default: auto]")
]
TimeBudget = Annotated[float | None, typer.Option("--time-budget", help="Seconds for the search.")]
MaxDeviceHours = Annotated[
    float | None, typer.Option("--max-device-hours", help="GPU hours (else CPU hours) for the search.")
]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", help="Cost of the search, by the prices of ORCHESTRATOR_PRICES.")
]
Constraint = Annotated[
    Sequence[str],
    typer.Option("--constraint", metavar="METRIC<=N", help="Trials that violate it do not win; also >=; repeatable."),
]
UntilGain = Annotated[
    int | None,
    typer.Option(
        "--until-gain", help="End when N more trials are expected to gain no more than the noise of selecting."
    ),
]
MaxFailures = Annotated[
    int | None,
    typer.Option(
        "--max-failures",
        help="Number of failed trials that stops the sweep.  "
        "[default: the first 5 with one cause, or 10 of the first 20]",
    ),
]
TrialTimeout = Annotated[
    float | None, typer.Option("--trial-timeout", help="Seconds without a report after which a trial or run fails.")
]
Profile = Annotated[
    int | None,
    typer.Option("--profile", metavar="STEPS", help="Trace STEPS steps before training; the trace is an artifact."),
]
MoreTrials = Annotated[
    int, typer.Option("--more-trials", help="With --resume: additional trials; a new winner opens test again.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="With --resume: try failed trials again.")]
Keep = Annotated[
    str | None, typer.Option("--keep", help="Checkpoints after the sweep: winner, all or none.  [default: winner]")
]

Reference = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a run, a sweep, a trial (SWEEP/7) or a job, or latest.")
]
Address = Annotated[str | None, typer.Option("--address", help="Dashboard, for jobs.")]


def collects_arguments(call: Callable[Concatenate[Given, P], R]) -> Callable[P, R]:
    """Decorator that passes all arguments by name as the first one, which the visible signature does not have.

    Options are converted to their types; the call raises UserError for a value that cannot be. The options of the call
    are added to :data:`OPTIONS`.
    """
    OPTIONS[call.__name__] = options_of(call)
    evaluated = evaluated_signature(call)
    shown = evaluated.replace(
        parameters=[one.replace(annotation=plain(one.annotation)) for one in list(evaluated.parameters.values())[1:]]
    )

    @functools.wraps(call)
    def collected(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = shown.bind(*args, **kwargs)
        check_text("An argument", bound.arguments)
        options = OPTIONS[call.__name__]
        given = {name: value for name, value in bound.arguments.items() if name in options}
        bound.arguments |= {name: _converted(name, options[name], value) for name, value in given.items()}
        bound.apply_defaults()
        return call(bound.arguments, *bound.args, **bound.kwargs)

    collected.__signature__ = shown  # type: ignore[attr-defined]
    return collected


def _converted(name: str, option: inspect.Parameter, value: Any) -> Any:
    """The value of an option as its type; a path counts as text, and one text as a sequence of it."""
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.config.parsing import allowed_values, takes_bool

    kind = plain(option.annotation)
    if isinstance(value, PathLike):
        value = fspath(value)
    if isinstance(value, str) and kind == Sequence[str]:
        value = [value]
    try:
        if not isinstance(value, bool) or takes_bool(kind):
            return TypeAdapter(kind).validate_python(value)
        allowed = "no true or false"
    except ValidationError as error:
        allowed = allowed_values(error.errors()[0])
    fix = "Name it by a string, such as mine.py:NAME" if callable(value) else None
    raise UserError(f"The option {name} is not valid", got=short_repr(value), allowed=allowed, fix=fix)


def evaluated_signature(call: Callable[..., Any]) -> inspect.Signature:
    """The signature with annotations as objects; that of the result stays text, since it may not be imported."""
    call = inspect.unwrap(call)
    texts = {name: hint for name, hint in call.__annotations__.items() if name != "return"}
    hints = get_type_hints(SimpleNamespace(__annotations__=texts), call.__globals__, include_extras=True)
    signature = inspect.signature(call)
    return signature.replace(
        parameters=[one.replace(annotation=hints.get(one.name, Any)) for one in signature.parameters.values()]
    )


def options_of(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a call: its parameters that have a flag."""
    parameters = evaluated_signature(call).parameters.values()
    return {one.name: one for one in parameters if get_origin(one.annotation) is Annotated}


CODE = ("space", "sampler", "scheduler")
"""Options that may name code of the user, ``file.py:name``."""


def named_code(given: Given) -> dict[str, str]:
    """The options that name code of the user, ``file.py:name``: all that a resume allows of these."""
    values = {name: given[name] for name in CODE}
    return {name: value for name, value in values.items() if value and is_named(value)}


ADDRESSES = ("tracking", "experiment", "storage", "ray_address")
"""Options that name a service or a storage; a resume takes them too."""

RESOURCES = ("workers", "gpus_per_worker", "cpus_per_worker", "max_gpus")
"""Options for resources. A resume takes them too, of a sweep all but the workers: another machine may have others."""


def resumable(*, sweep: bool) -> tuple[str, ...]:
    """The resources that a resume takes. Trials of one sweep have a fixed number of workers."""
    return RESOURCES[1:] if sweep else RESOURCES


def resume_takes(shown: Callable[[str], str], *, sweep: bool) -> str:
    """The options that a resume takes, each as ``shown`` writes its name."""
    *resources, last = map(shown, resumable(sweep=sweep))
    devices = f"{', '.join(resources)} and {last}"
    if not sweep:
        return devices
    more, retry, space, sampler, scheduler = map(
        shown, ("more_trials", "retry_failed", "space", "sampler", "scheduler")
    )
    return f"{more} and {retry}; {devices}; and {space}, {sampler} and {scheduler} if your files of these have moved"


def flag_of(name: str) -> str:
    """The flag of an option on the command line."""
    return "--from" if name == "origin" else f"--{name.replace('_', '-')}"


def mistaken_key(
    key: str, value: Any, names: Collection[str], *, verb: str, python: bool, listed_by: str | None = None
) -> UserError:
    """The error for a ``key=value`` of ``verb`` that is none of ``names``, its parameters and keys of the plan.

    It may be an option, also of another verb, or a misspelt name of either. ``listed_by`` is the command that lists
    ``names``.
    """
    name = key.rpartition(".")[2].replace("-", "_")
    name = "origin" if name == "from" else name
    own = OPTIONS.get(verb, {})
    if name in own:
        flag = flag_of(name) if plain(own[name].annotation) is bool else f"{flag_of(name)} {value}"
        return UserError(
            f"{name} is an option", got=f"{key}={value}", fix=f"Write {f'{name}={value}' if python else flag}"
        )
    if other := next((one for one, options in OPTIONS.items() if name in options), None):
        what = f"{name}={value}" if python else flag_of(name)
        use = f"call {other}" if python else f"use orchestrator {other}"
        return UserError(f"{what} is an option of {other}, not of {verb}", fix=f"Remove it, or {use}")
    close = nearest(name, {*names, *own})
    if close in own and close not in names:
        shown = repr(close) if python else flag_of(str(close))
        return UserError("Unknown parameter", got=repr(key), fix=f"Did you mean {shown}?")
    return unknown("parameter", key, names, listed_by=listed_by)


def plain(annotation: Any) -> Any:
    """The type of an option."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
