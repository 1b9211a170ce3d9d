"""The verbs that train: run and sweep, and plan, which estimates their cost."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli.common import PLANNING, Planning, alone, command_of, planned, resolved, show_result, split_words
from orchestrator.config.options import RESOURCES, Given, Json, Words, named_code, resumable
from orchestrator.errors import UserError

app = typer.Typer()


@app.command("run")
@command_of(api.run)
def run_command(given: Given, words: Words, as_json: Json) -> None:
    """Run one experiment, from selection to a logged model.

    Select on validation, refit, open the test split once, log the model.

    Example: orchestrator run recommender dataset=ml-100k backbone=lightgcn epochs=50 --register rec
    """
    from orchestrator.config.parsing import read_overrides
    from orchestrator.console import Console
    from orchestrator.sweeps import request

    settings = resolved(**{name: given[name] for name in api.ADDRESSES})
    console = Console(json=as_json)
    if given["resume"] is not None:
        alone("--resume", words, given, api.run)
        from orchestrator.storage import run_lookup

        folder = run_lookup.find(settings.storage, given["resume"], "run")  # before PyTorch is loaded
        from orchestrator.runs import driver

        result = driver.resume(folder, settings, console, {name: given[name] for name in RESOURCES})
    else:
        workload, pairs = split_words(words)
        named = request.by_name(given)
        spec = request.experiment(workload, settings, overrides=read_overrides(pairs), say=console.say, **named)
        from orchestrator.runs import driver

        names = ("local", "register", "name", "trial_timeout", "profile")
        options = driver.Options(**{name: given[name] for name in names})
        if planned(spec, settings, given["local"]):
            return
        result = driver.run(spec, settings, options, console)
    show_result(result, as_json)


@app.command("sweep")
@command_of(api.sweep)
def sweep_command(given: Given, words: Words, as_json: Json) -> None:
    """Search hyperparameters and evaluate the winner.

    The winner is selected on validation and evaluated once on test.

    Example: orchestrator sweep recommender dataset=ml-100k --trials 64 --register rec-ml-100k
    """
    from orchestrator.config.parsing import read_overrides
    from orchestrator.console import Console
    from orchestrator.sweeps import request

    settings = resolved(**{name: given[name] for name in api.ADDRESSES})
    console = Console(json=as_json)
    if given["resume"] is not None:
        code = named_code(given)
        alone("--resume", words, given, api.sweep, "more_trials", "retry_failed", *code)
        from orchestrator.storage import run_lookup
        from orchestrator.sweeps import sweep

        resources = {name: given[name] for name in resumable(sweep=True)}
        resume_options = sweep.ResumeOptions(given["more_trials"], given["retry_failed"], resources, **code)
        folder = run_lookup.find(settings.storage, given["resume"], "sweep")
        result = sweep.resume(folder, settings, console, resume_options)
    else:
        if given["more_trials"] or given["retry_failed"]:
            raise UserError("--more-trials and --retry-failed continue a sweep", fix="Name it with --resume ID")
        workload, pairs = split_words(words)
        named = request.by_name(given)
        spec = request.sweep(workload, settings, overrides=read_overrides(pairs), say=console.say, **named)
        from orchestrator.runs import driver

        options = driver.Options(
            local=given["local"], register=given["register"], name=given["name"], keep=given["keep"] or "winner"
        )
        if planned(spec, settings, given["local"]):
            return
        from orchestrator.sweeps import sweep

        result = sweep.sweep(spec, settings, options, console)
    show_result(result, as_json)


@app.command(context_settings={"ignore_unknown_options": True})
def plan(
    words: Annotated[list[str] | None, typer.Argument(metavar="run|sweep ...", show_default=False)] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Train two epochs to measure the time.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Print the options of sbatch that it needs.")] = False,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, help="GPUs of a node, for --slurm; 0: none. Default: 8.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the cost of a run or sweep; start nothing.

    Shows trials and devices, with --probe also hours and storage. With --slurm prints a header for sbatch.

    Example: orchestrator plan sweep recommender dataset=ml-100k --trials 64 --probe
    """
    if not words or words[0] not in ("run", "sweep"):
        raise UserError(
            "plan needs the command of a run or a sweep", got=" ".join(words) if words else None,
            fix="Such as: orchestrator plan run recommender epochs=10",
        )  # fmt: skip
    if any(word.partition("=")[0] == "--resume" for word in words):
        raise UserError("plan does not work with --resume", got="--resume", fix="Leave it out")
    if slurm and as_json:
        raise UserError("--slurm prints options of sbatch, which are no JSON", fix="Leave out --json")
    if gpus_per_node is not None and not slurm:
        raise UserError("--gpus-per-node is for --slurm", got=f"--gpus-per-node {gpus_per_node}", fix="Add --slurm")
    gpus = (8 if gpus_per_node is None else gpus_per_node) if slurm else None
    token = PLANNING.set(Planning(probe, as_json, gpus))
    try:
        app(words, standalone_mode=False)
    finally:
        PLANNING.reset(token)
