"""The verbs, thin: parse, call, print. Heavy imports stand inside the verbs; errors leave in one sentence."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.errors import UserError
from orchestrator.exits import guarded
from orchestrator.options import (
    Address,
    Config,
    Cpus,
    Experiment,
    Gpus,
    Json,
    Local,
    RayAddress,
    Reference,
    Register,
    Resume,
    Seed,
    Storage,
    Tracking,
    Words,
    Workers,
)

if TYPE_CHECKING:
    from orchestrator.session import Result
    from orchestrator.settings import Settings

app = typer.Typer(
    name="orchestrator",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Experiments from an idea to a registered model: Ray Train and Tune, Optuna, MLflow.",
    epilog="Example: orchestrator run recommender dataset=ml-100k backbone=lightgcn epochs=50",
)
data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Datasets: list, fetch, verify.")
app.add_typer(data, name="data")


@app.command("run")
def run_command(
    words: Words = None,
    config: Config = None,
    seed: Seed = None,
    local: Local = False,
    workers: Workers = None,
    gpus_per_worker: Gpus = None,
    cpus_per_worker: Cpus = None,
    resume: Resume = None,
    register: Register = None,
    as_json: Json = False,
    tracking: Tracking = None,
    experiment: Experiment = None,
    storage: Storage = None,
    ray_address: RayAddress = None,
) -> None:
    """Run one experiment: select on validation, refit, open test once, log the model.

    Example: orchestrator run recommender dataset=ml-100k backbone=lightgcn epochs=50 --register rec
    """
    from orchestrator.configuration import read_overrides
    from orchestrator.console import Console

    settings = _settings(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    console = Console(json=as_json)
    if resume is not None:
        _alone(
            "--resume", words, config=config, seed=seed, local=local, workers=workers,
            gpus_per_worker=gpus_per_worker, cpus_per_worker=cpus_per_worker, register=register,
        )  # fmt: skip
        from orchestrator import records

        folder = records.find(settings.storage, resume, "run")
        from orchestrator import runs

        result = runs.resume(folder, settings, console)
    else:
        workload, pairs = _split(words)
        from orchestrator import request

        resources = {
            "workers": workers,
            "gpus_per_worker": gpus_per_worker,
            "cpus_per_worker": cpus_per_worker,
        }
        spec = request.experiment(
            workload,
            settings,
            config=config,
            overrides=read_overrides(pairs),
            seed=seed,
            resources=resources,
            local=local,
        )
        from orchestrator import runs

        result = runs.run(spec, settings, runs.Options(local=local, register=register), console)
    _show(result, as_json, register)


@app.command("sweep")
def sweep_command(
    words: Words = None,
    config: Config = None,
    trials: Annotated[int | None, typer.Option("--trials", help="Trials in all.  [default: 16]")] = None,
    space: Annotated[str | None, typer.Option("--space", help="Preset of search_spaces/, or file.py:function.")] = None,
    sampler: Annotated[str | None, typer.Option("--sampler", help="tpe, gp, random, cmaes.  [default: tpe]")] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="asha or none.  [default: asha]")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Trials at once.")] = None,
    time_budget: Annotated[float | None, typer.Option("--time-budget", help="Seconds for the search.")] = None,
    seed: Seed = None,
    local: Local = False,
    gpus_per_worker: Gpus = None,
    cpus_per_worker: Cpus = None,
    resume: Resume = None,
    register: Register = None,
    as_json: Json = False,
    tracking: Tracking = None,
    experiment: Experiment = None,
    storage: Storage = None,
    ray_address: RayAddress = None,
) -> None:
    """Search hyperparameters; the winner, by validation, is evaluated once on test.

    Example: orchestrator sweep recommender dataset=ml-100k --trials 64 --register rec-ml-100k
    """
    from orchestrator.configuration import read_overrides
    from orchestrator.console import Console

    settings = _settings(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    console = Console(json=as_json)
    if resume is not None:
        _alone(
            "--resume", words, config=config, trials=trials, space=space, sampler=sampler, scheduler=scheduler,
            concurrency=concurrency, time_budget=time_budget, seed=seed, local=local,
            gpus_per_worker=gpus_per_worker, cpus_per_worker=cpus_per_worker, register=register,
        )  # fmt: skip
        from orchestrator import records

        folder = records.find(settings.storage, resume, "sweep")
        from orchestrator import sweeps

        result = sweeps.resume(folder, settings, console)
    else:
        workload, pairs = _split(words)
        from orchestrator import request

        spec = request.sweep(
            workload,
            settings,
            config=config,
            overrides=read_overrides(pairs),
            seed=seed,
            resources={"gpus_per_worker": gpus_per_worker, "cpus_per_worker": cpus_per_worker},
            search={
                "trials": trials,
                "space": space,
                "sampler": sampler,
                "scheduler": scheduler,
                "concurrency": concurrency,
                "time_budget": time_budget,
            },
            local=local,
        )
        from orchestrator import runs, sweeps

        result = sweeps.sweep(spec, settings, runs.Options(local=local, register=register), console)
    _show(result, as_json, register)


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="Registered model.")],
    to: Annotated[str, typer.Option("--to", metavar="ALIAS", help="Alias, such as champion.")],
    version: Annotated[str | None, typer.Option("--version", help="Version.  [default: the newest]")] = None,
    as_json: Json = False,
    tracking: Tracking = None,
) -> None:
    """Point an alias of the registry at a version, once it loads and predicts.

    Example: orchestrator promote rec-ml-100k --to champion
    """
    settings = _settings(tracking=tracking)
    _reachable(settings)
    from orchestrator import registry

    event = registry.promote(settings, model, to, version)
    before = f" (was version {event['before']})" if event["before"] else ""
    _out(event, f"{model}@{to} is now version {event['version']}{before}", as_json)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="MODEL@ALIAS, MODEL/VERSION or a model URI.")],
    source: Annotated[str, typer.Option("--input", help="Parquet, CSV or JSON lines; - reads standard input.")],
    target: Annotated[
        str | None, typer.Option("--output", help="File to write.  [default: JSON lines to stdout]")
    ] = None,
    params: Annotated[list[str] | None, typer.Argument(metavar="key=value ...", show_default=False)] = None,
    tracking: Tracking = None,
) -> None:
    """Use what the registry holds; key=value are the model's own parameters, such as k=10.

    Example: orchestrator predict rec-ml-100k@champion --input users.csv --output top.parquet
    """
    from orchestrator.configuration import read_overrides

    given = read_overrides(params or [])
    settings = _settings(tracking=tracking)
    _reachable(settings)
    from orchestrator import prediction

    prediction.predict(settings, model, source, target, given)


@app.command()
def workloads(
    name: Annotated[str | None, typer.Argument(help="Workload to show every parameter of.")] = None,
    as_json: Json = False,
) -> None:
    """List the workloads, or every parameter of one: type, default, bounds, source.

    Example: orchestrator workloads recommender
    """
    from orchestrator import describe

    if name is None:
        describe.print_workloads(as_json)
    else:
        describe.print_parameters(name, as_json)


@data.command("list")
def data_list(as_json: Json = False) -> None:
    """Which datasets there are, and which are present."""
    from orchestrator import describe

    describe.print_datasets(_settings(), as_json)


@data.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="Dataset.")]) -> None:
    """Download a dataset from its official source and verify it."""
    from workloads.data import datasets
    from workloads.data.errors import DataError, DataUnreachable

    settings = _settings()
    try:
        fetched = datasets.fetch(name, settings.data)
    except DataUnreachable as error:
        raise UserError(str(error), code=3) from None
    except DataError as error:
        raise UserError(str(error)) from None
    for path in fetched:
        print(path)
    print(f"{name} is present and intact below {settings.data}")


@data.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets.  [default: all that are present]")] = None,
) -> None:
    """Read every byte of datasets and say what is wrong with them; exit 2 when something is."""
    from orchestrator import describe

    raise typer.Exit(describe.verify_datasets(_settings(), names or []))


@app.command()
def doctor(as_json: Json = False, tracking: Tracking = None, ray_address: RayAddress = None) -> None:
    """What works here and what to do about what does not; exit 3 when something does not."""
    from orchestrator import doctor as checks

    raise typer.Exit(checks.run(_settings(tracking=tracking, ray_address=ray_address), as_json))


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")] = 5000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    tracking: Tracking = None,
) -> None:
    """Open MLflow's UI on the right store."""
    from orchestrator import ui as server

    server.serve(_settings(tracking=tracking), host, port)


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- VERB ...", show_default=False)] = None,
    address: Annotated[str | None, typer.Option("--address", help="Dashboard, http://HOST:8265.")] = None,
    working_dir: Annotated[Path | None, typer.Option("--working-dir", help="Code to send.  [default: none]")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job and exit with its code.")] = True,
    as_json: Json = False,
) -> None:
    """Run a verb as a Ray job on a cluster.

    Example: orchestrator submit -- sweep recommender --trials 8
    """
    from orchestrator import jobs

    raise typer.Exit(jobs.submit(command or [], address=address, working_dir=working_dir, wait=wait, as_json=as_json))


@app.command("jobs")
def jobs_command(
    address: Annotated[str | None, typer.Option("--address", help="Dashboard, http://HOST:8265.")] = None,
    as_json: Json = False,
) -> None:
    """List the jobs of the cluster, newest first."""
    from orchestrator import jobs

    jobs.list_jobs(address=address, as_json=as_json)


@app.command()
def status(
    reference: Reference = "latest",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with its own code.")] = False,
    address: Address = None,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """How a run, a sweep or a job stands."""
    from orchestrator import control

    raise typer.Exit(control.status(_settings(storage=storage), reference, wait=wait, address=address, as_json=as_json))


@app.command()
def logs(
    reference: Reference = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    address: Address = None,
    storage: Storage = None,
) -> None:
    """The log of a run, a sweep or a job."""
    from orchestrator import control

    control.logs(_settings(storage=storage), reference, follow=follow, address=address)


@app.command()
def stop(reference: Reference = "latest", address: Address = None, storage: Storage = None) -> None:
    """Stop a run, a sweep or a job cleanly; it can be resumed."""
    from orchestrator import control

    control.stop(_settings(storage=storage), reference, address=address)


@app.command()
def sync(reference: Reference = "latest", storage: Storage = None, tracking: Tracking = None) -> None:
    """Deliver what an MLflow outage kept back."""
    settings = _settings(storage=storage, tracking=tracking)
    _reachable(settings)
    from orchestrator import records, session

    print(session.sync(settings, records.find(settings.storage, reference)))


def main() -> None:
    """The entry point: every error a user can meet leaves here, in one sentence, with its exit code."""
    code = guarded(lambda: app(standalone_mode=False))
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"):  # Ray knows only 0 and 1: leave the true code in the job's log
        from orchestrator.job_state import EXIT_RECORD

        print(f"{EXIT_RECORD}{code}", flush=True)
    sys.stdout.flush()
    sys.exit(code)


def _settings(**flags: str | None) -> Settings:
    from orchestrator.settings import resolve

    return resolve(flags)


def _reachable(settings: Settings) -> None:
    from orchestrator import preflight

    preflight.tracking(settings)


def _split(words: list[str] | None) -> tuple[str | None, list[str]]:
    """``[WORKLOAD] key=value ...`` -> (workload, pairs)."""
    words = list(words or [])
    workload = words.pop(0) if words and "=" not in words[0] else None
    return workload, words


def _alone(flag: str, words: list[str] | None, **options: Any) -> None:
    named = (name for name, value in options.items() if value is not None and value is not False)
    if given := [*(words or []), *(f"--{name.replace('_', '-')}" for name in named)]:
        raise UserError(
            f"{flag} goes on with what was asked for, so nothing else can be asked", got=" ".join(given),
            fix=f"Keep only {flag}",
        )  # fmt: skip


def _show(result: Result, as_json: bool, register: str | None) -> None:
    from orchestrator.console import Console

    if as_json:
        print(json.dumps(result.to_json()), flush=True)
    else:
        console = Console()
        console.say(f"Model: {result.model_uri}")
        console.say(f"Results: {result.folder}")
        console.say("Next:")
        console.say("  orchestrator ui                      # the runs, in MLflow")
        if register:
            console.say(f"  orchestrator promote {register} --to champion")
    raise typer.Exit(result.exit_code)


def _out(value: Any, text: str, as_json: bool) -> None:
    print(json.dumps(value) if as_json else text)


if __name__ == "__main__":
    main()
