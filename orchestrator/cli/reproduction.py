"""The verbs that repeat results: ``reproduce run``, ``reproduce ID`` for a published table or figure, and ``reproduce
SOURCE`` for all of a source."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.cli.common import finish, resolved
from orchestrator.config.options import ADDRESSES, Experiment, Json, Local, RayAddress, Storage, Tracking
from orchestrator.errors import unknown
from workloads.published import Computation, Figure, Published, Table


class WithPublished(TyperGroup):
    """Command group with a command for each source and each published result, which is created on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        from orchestrator.reproduce.catalog import all_published, sources

        return [*super().list_commands(ctx), *sources(), *all_published()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from orchestrator.reproduce.catalog import all_published, broken, sources

        if command := super().get_command(ctx, cmd_name):
            return command
        if cmd_name in sources():
            return _source_command(cmd_name)
        name = cmd_name if cmd_name in all_published() else cmd_name.replace("-figure-", "-fig")  # the older spelling
        if name not in all_published():
            faults = "; ".join(f"those of {workload} cannot be loaded: {why}" for workload, why in broken().items())
            kind = "table, figure or verb" + (f" ({faults})" if faults else "")
            raise unknown(kind, cmd_name, self.list_commands(ctx))
        return _command(all_published()[name])


app = typer.Typer()
reproduce = typer.Typer(
    cls=WithPublished, no_args_is_help=True, rich_markup_mode=None, help="Repeat a recorded or published result."
)
app.add_typer(reproduce, name="reproduce")


@reproduce.command("run")
def run_command(
    reference: Annotated[str, typer.Argument(metavar="RUN_ID", help="Run or sweep, SWEEP/TRIAL, MLflow run, latest.")],
    check: Annotated[bool, typer.Option("--check", help="Only list what cannot be the same.")] = False,
    script: Annotated[bool, typer.Option("--script", help="Only print the commands that repeat it.")] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Relative difference that counts as equal.")
    ] = 1e-3,
    space: Annotated[
        str | None, typer.Option("--space", help="Trusted search space, file.py:function, for another user's sweep.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="Trusted sampler, file.py:NAME, for another user's sweep.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="Trusted scheduler, file.py:NAME, for another user's sweep.")
    ] = None,
    as_json: Json = False,
    tracking: Tracking = None,
    experiment: Experiment = None,
    storage: Storage = None,
    ray_address: RayAddress = None,
) -> None:
    """Repeat a run, trial or sweep from its record, and compare.

    Exit 1 when the metrics differ.

    Example: orchestrator reproduce run latest --check
    """
    from orchestrator.console import Console
    from orchestrator.reproduce import repeat_run

    settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    trusted = {"space": space, "sampler": sampler, "scheduler": scheduler}
    report, code = repeat_run.run(
        settings, reference, check=check, script=script, tolerance=tolerance, console=Console(json=as_json),
        trusted=trusted,
    )  # fmt: skip
    finish(report, code, as_json)


def _methods(one: Table | Figure) -> Any:
    """The option for the names of table rows or figure lines, which its help lists."""
    names = list(one.methods) if isinstance(one, Table) else [line.name for panel in one.panels for line in panel.lines]
    about = f"One of: {'; '.join(dict.fromkeys(names))}. Repeatable.  [default: all]"
    return Annotated[list[str] | None, typer.Option("--method", metavar="NAME", help=about)]


def _values(name: str, one: Published) -> Any:
    about = f"A value of {name}, published or another; repeatable.  [default: the published ones]"
    if isinstance(one, Figure) and name in one.confined:
        about = f"A value of {name}; available: {' or '.join(one.confined[name])}."
    return Annotated[list[str] | None, typer.Option(f"--{name.replace('_', '-')}", help=about)]


OPTIONS: dict[str, tuple[Any, Any]] = {
    "quick": (
        Annotated[bool, typer.Option("--quick", help="A very short test that it works.")],
        False,
    ),
    "as_json": (Json, False),
    "tracking": (Tracking, None),
    "experiment": (Experiment, None),
}
"""Options of every published result: type and default."""

WITH_RUNS: dict[str, tuple[Any, Any]] = {
    "as_published": (
        Annotated[
            bool, typer.Option("--as-published", help="Use the test part as the source does; the runs are marked.")
        ],
        False,
    ),
    "local": (Local, False),
    "storage": (Storage, None),
    "ray_address": (RayAddress, None),
}
SEEDS = Annotated[int, typer.Option("--seeds", min=1, help="Models of each row, each with another seed.")]
TRIALS = Annotated[
    int, typer.Option("--trials", min=0, help="Trials of the search on validation; 0: the given settings.")
]


def _options(one: Published) -> dict[str, tuple[Any, Any]]:
    """The options of a published result; one that trains no model has fewer."""
    if isinstance(one, Computation):
        return OPTIONS
    regime = one.regime
    values = {name: (_values(name, one), None) for name in one.by}
    per_method = {"method": (_methods(one), None), "seeds": (SEEDS, regime.seeds), "trials": (TRIALS, regime.trials)}
    return {**values, **per_method, **WITH_RUNS, **OPTIONS}


def _command(one: Published) -> Any:
    """The command of one table or figure."""

    def command(**given: Any) -> None:
        from orchestrator.console import Console
        from orchestrator.reproduce import published as published_verb
        from orchestrator.reproduce.table_runs import ReproductionBudget

        settings = resolved(**{name: given[name] for name in ADDRESSES if name in given})
        amount = {name: given[name] for name in ("seeds", "trials", "quick", "local", "as_published") if name in given}
        where = {name: tuple(given[name]) for name in getattr(one, "by", ()) if given[name]}
        request = published_verb.ReproductionRequest(one, where, tuple(given.get("method") or ()))
        report, code = published_verb.reproduce(
            request, settings, ReproductionBudget(**amount), Console(json=given["as_json"])
        )
        finish(report, code, given["as_json"])

    return _built(one.id, f"{one.title} ({one.source}).", command, _options(one))


OF_SOURCE: dict[str, tuple[Any, Any]] = {
    "run_all": (
        Annotated[bool, typer.Option("--all", help="Run it; without this flag only the plan is shown.")],
        False,
    ),
    "hours": (
        Annotated[float | None, typer.Option("--hours", min=0.0, help="Start nothing after so many hours, and stop.")],
        None,
    ),
    "only": (
        Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="A table or figure; repeatable.")],
        None,
    ),
    "seeds": (
        Annotated[int | None, typer.Option("--seeds", min=1, help="Models of each row.  [default: of each table]")],
        None,
    ),
    "trials": (
        Annotated[int | None, typer.Option("--trials", min=0, help="Trials of a search.  [default: of each table]")],
        None,
    ),
}
"""Options of a source: type and default."""


def _source_command(source: str) -> Any:
    """The command of all published results of a source."""
    from orchestrator.reproduce.catalog import all_published, of_source

    every = [all_published()[name] for name in of_source(source)]
    by = dict.fromkeys(name for one in every for name in getattr(one, "by", ()))
    about = "Only blocks with this value of {}; repeatable."

    def command(**given: Any) -> None:
        from orchestrator.console import Console
        from orchestrator.reproduce import run_all
        from orchestrator.reproduce.table_runs import ReproductionBudget

        settings = resolved(**{name: given[name] for name in ADDRESSES})
        budget = ReproductionBudget(**{name: given[name] for name in ("quick", "local", "as_published")})
        request = run_all.AllRequest(
            source, budget, given["run_all"], given["hours"], given["seeds"], given["trials"],
            {name: tuple(given[name]) for name in by if given[name]}, tuple(given["only"] or ()),
        )  # fmt: skip
        report, code = run_all.reproduce(request, settings, Console(json=given["as_json"]))
        finish(report, code, given["as_json"])

    where = {
        name: (Annotated[list[str] | None, typer.Option(f"--{name.replace('_', '-')}", help=about.format(name))], None)
        for name in by
    }
    text = (
        f"Plan, or with --all run, every published result of {source} that can be had here, the most valuable first. "
        "Finished runs are reused, so that a call goes on where another one has ended."
    )
    return _built(source, text, command, {**OF_SOURCE, **where, **WITH_RUNS, **OPTIONS})


def _built(name: str, text: str, command: Any, options: dict[str, tuple[Any, Any]]) -> Any:
    """A command with these options."""
    kind = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind, default=default, annotation=type) for name, (type, default) in options.items()]
    )
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, help=text)(command)
    return typer.main.get_command(alone)
