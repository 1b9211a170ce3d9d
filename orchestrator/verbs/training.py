"""The verbs that train: run and sweep."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.options import (
    Config,
    Cpus,
    Experiment,
    Gpus,
    Json,
    Local,
    RayAddress,
    Register,
    Resume,
    Seed,
    Storage,
    Tracking,
    Words,
    Workers,
)
from orchestrator.verbs.common import alone, resolved, show_result, split_words

app = typer.Typer()


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

    settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    console = Console(json=as_json)
    if resume is not None:
        alone(
            "--resume", words, config=config, seed=seed, local=local, workers=workers,
            gpus_per_worker=gpus_per_worker, cpus_per_worker=cpus_per_worker, register=register,
        )  # fmt: skip
        from orchestrator import records

        folder = records.find(settings.storage, resume, "run")
        from orchestrator import runs

        result = runs.resume(folder, settings, console)
    else:
        workload, pairs = split_words(words)
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
    show_result(result, as_json, register)


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

    settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    console = Console(json=as_json)
    if resume is not None:
        alone(
            "--resume", words, config=config, trials=trials, space=space, sampler=sampler, scheduler=scheduler,
            concurrency=concurrency, time_budget=time_budget, seed=seed, local=local,
            gpus_per_worker=gpus_per_worker, cpus_per_worker=cpus_per_worker, register=register,
        )  # fmt: skip
        from orchestrator import records

        folder = records.find(settings.storage, resume, "sweep")
        from orchestrator import sweeps

        result = sweeps.resume(folder, settings, console)
    else:
        workload, pairs = split_words(words)
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
    show_result(result, as_json, register)
