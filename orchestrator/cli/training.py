"""The verbs that train: run, sweep, and plan, which tells what they would take."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import PLANNING, Planning, alone, planned, resolved, show_result, split_words
from orchestrator.config.options import (
    Config,
    Cpus,
    Experiment,
    Gpus,
    Json,
    Local,
    MaxGpus,
    Name,
    Preset,
    RayAddress,
    Register,
    Resume,
    Seed,
    Storage,
    Tracking,
    Words,
    Workers,
)
from orchestrator.errors import UserError

app = typer.Typer()


@app.command("run")
def run_command(
    words: Words = None,
    config: Config = None,
    preset: Preset = None,
    seed: Seed = None,
    local: Local = False,
    workers: Workers = None,
    gpus_per_worker: Gpus = None,
    cpus_per_worker: Cpus = None,
    max_gpus: MaxGpus = None,
    resume: Resume = None,
    name: Name = None,
    register: Register = None,
    as_json: Json = False,
    tracking: Tracking = None,
    experiment: Experiment = None,
    storage: Storage = None,
    ray_address: RayAddress = None,
) -> None:
    """Run one experiment, from selection to a logged model.

    Select on validation, refit, open the test split once, log the model.

    Example: orchestrator run recommender dataset=ml-100k backbone=lightgcn epochs=50 --register rec
    """
    given = dict(locals())
    from orchestrator.config.parsing import read_overrides
    from orchestrator.console import Console
    from orchestrator.sweeps import request

    settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    console, asked = Console(json=as_json), request.by_name(given)
    if resume is not None:
        alone(
            "--resume",
            words,
            config=config,
            preset=preset,
            seed=seed,
            local=local,
            register=register,
            name=name,
            **asked["resources"],
        )
        from orchestrator.storage import records

        folder = records.find(settings.storage, resume, "run")
        from orchestrator.runs import driver

        result = driver.resume(folder, settings, console)
    else:
        workload, pairs = split_words(words)
        spec = request.experiment(workload, settings, overrides=read_overrides(pairs), **asked)
        if planned(spec, settings, local):
            return
        from orchestrator.runs import driver

        result = driver.run(spec, settings, driver.Options(local=local, register=register, name=name), console)
    show_result(result, as_json)


@app.command("sweep")
def sweep_command(
    words: Words = None,
    config: Config = None,
    preset: Preset = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Trials in all.  [default: 16; of a grid, every point]")
    ] = None,
    space: Annotated[str | None, typer.Option("--space", help="One of the workload's, or file.py:function.")] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="tpe, gp, cmaes, random, grid.  [default: tpe]")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="asha, hyperband, median, pbt or none.  [default: asha]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Runs of each configuration; the best mean wins.  [default: 1]")
    ] = None,
    warm_start: Annotated[
        list[str] | None, typer.Option("--warm-start", metavar="SWEEP", help="Learn from an earlier sweep; repeatable.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Trials at once.")] = None,
    pack: Annotated[
        str | None, typer.Option("--pack", help="Trials trained together: auto, off or how many.  [default: auto]")
    ] = None,
    time_budget: Annotated[float | None, typer.Option("--time-budget", help="Seconds for the search.")] = None,
    max_device_hours: Annotated[
        float | None, typer.Option("--max-device-hours", help="GPU hours (else CPU hours) for the search.")
    ] = None,
    trial_timeout: Annotated[
        float | None, typer.Option("--trial-timeout", help="Seconds of silence after which a trial has failed.")
    ] = None,
    seed: Seed = None,
    local: Local = False,
    workers: Workers = None,
    gpus_per_worker: Gpus = None,
    cpus_per_worker: Cpus = None,
    max_gpus: MaxGpus = None,
    resume: Resume = None,
    more_trials: Annotated[
        int, typer.Option("--more-trials", help="With --resume: so many more; a new winner opens test again.")
    ] = 0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: try failed trials again.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option("--keep", help="Checkpoints after the sweep: winner, all or none.  [default: winner]")
    ] = None,
    name: Name = None,
    register: Register = None,
    as_json: Json = False,
    tracking: Tracking = None,
    experiment: Experiment = None,
    storage: Storage = None,
    ray_address: RayAddress = None,
) -> None:
    """Search hyperparameters, and settle the winner.

    The winner, by validation, is evaluated once on test.

    Example: orchestrator sweep recommender dataset=ml-100k --trials 64 --register rec-ml-100k
    """
    given = dict(locals())
    from orchestrator.config.parsing import read_overrides
    from orchestrator.console import Console
    from orchestrator.sweeps import request

    settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    console, asked = Console(json=as_json), request.by_name(given)
    if resume is not None:
        again_from = space if space and ":" in space else None  # a file may have moved; a preset is what it was
        alone(
            "--resume",
            words,
            config=config,
            preset=preset,
            seed=seed,
            local=local,
            register=register,
            name=name,
            keep=keep,
            **asked["search"] | {"space": None if again_from else space},
            **asked["resources"],
        )
        from orchestrator.storage import records
        from orchestrator.sweeps import sweep

        again = sweep.Again(more_trials, retry_failed, again_from)
        result = sweep.resume(records.find(settings.storage, resume, "sweep"), settings, console, again)
    else:
        if more_trials or retry_failed:
            raise UserError("--more-trials and --retry-failed go on with a sweep", fix="Name it with --resume ID")
        workload, pairs = split_words(words)
        spec = request.sweep(workload, settings, overrides=read_overrides(pairs), **asked)
        if planned(spec, settings, local):
            return
        from orchestrator.runs import driver
        from orchestrator.sweeps import sweep

        options = driver.Options(local=local, register=register, name=name, keep=keep or "winner")
        result = sweep.sweep(spec, settings, options, console)
    show_result(result, as_json)


@app.command(context_settings={"ignore_unknown_options": True})
def plan(
    words: Annotated[list[str] | None, typer.Argument(metavar="run|sweep ...", show_default=False)] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Train two epochs to measure one.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a run or sweep would take; start nothing.

    Trials, devices, hours and storage; hours and storage with --probe.

    Example: orchestrator plan sweep recommender dataset=ml-100k --trials 64 --probe
    """
    if not words or words[0] not in ("run", "sweep"):
        raise UserError(
            "A plan is of a run or a sweep", got=" ".join(words) if words else None,
            fix="Such as: orchestrator plan run recommender epochs=10",
        )  # fmt: skip
    if any(word.partition("=")[0] == "--resume" for word in words):
        raise UserError("A plan is of what begins", got="--resume", fix="Leave it away")
    asked = PLANNING.set(Planning(probe, as_json))
    try:
        app(words, standalone_mode=False)
    finally:
        PLANNING.reset(asked)
