"""The verbs that train: run and sweep, and plan, which estimates their cost."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli.common import PLANNING, Planning, command_of, resolved, show_plan, show_result, split_words
from orchestrator.config.options import ADDRESSES, Given, Json, Words
from orchestrator.errors import UserError

app = typer.Typer()


@app.command("run")
@command_of(api.run)
def run_command(given: Given, words: Words, as_json: Json) -> None:
    """Run one experiment, from selection to a logged model.

    Select on validation, refit, open the test split once, log the model.

    Example: orchestrator run recommender dataset=ml-100k backbone=lightgcn epochs=50 --register rec
    """
    _train("run", given, words, as_json)


@app.command("sweep")
@command_of(api.sweep)
def sweep_command(given: Given, words: Words, as_json: Json) -> None:
    """Search hyperparameters and evaluate the winner.

    The winner is selected on validation and evaluated once on test.

    Example: orchestrator sweep recommender dataset=ml-100k --trials 64 --register rec-ml-100k
    """
    _train("sweep", given, words, as_json)


def _train(verb: str, given: Given, words: list[str] | None, as_json: bool) -> None:
    from orchestrator.config.parsing import read_overrides
    from orchestrator.console import Console

    settings = resolved(**{name: given[name] for name in ADDRESSES})
    workload, pairs = split_words(words)
    resuming = given["resume"] is not None
    result = api.train(
        verb, given, settings, Console(json=as_json), workload, {} if resuming else read_overrides(pairs),
        words=words or (), before_start=lambda spec: show_plan(spec, settings, given["local"]),
    )  # fmt: skip
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
