"""The verbs that repeat what is on record: reproduce run, and reproduce thesis-N for what is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from orchestrator.options import Experiment, Json, Local, RayAddress, Storage, Tracking
from orchestrator.verbs.common import resolved
from workloads.recommender.published import FIGURES, TABLES

app = typer.Typer()
reproduce = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Repeat what is on record, and compare.")
app.add_typer(reproduce, name="reproduce")


@reproduce.command("run")
def run_command(
    reference: Annotated[str, typer.Argument(metavar="RUN_ID", help="MLflow run id, our id, SWEEP/TRIAL, or latest.")],
    check: Annotated[bool, typer.Option("--check", help="Only say what can not be the same.")] = False,
    script: Annotated[bool, typer.Option("--script", help="Only print the commands that repeat it.")] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Relative difference that still is the same.")
    ] = 1e-3,
    as_json: Json = False,
    tracking: Tracking = None,
    experiment: Experiment = None,
    storage: Storage = None,
    ray_address: RayAddress = None,
) -> None:
    """Run a run, a trial or a sweep once more from its record, and compare the metrics; exit 1 when they differ.

    Example: orchestrator reproduce run latest --check
    """
    import json

    from orchestrator.console import Console
    from orchestrator.reproduction import reproduce as repeat

    settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
    told, code = repeat.run(
        settings, reference, check=check, script=script, tolerance=tolerance, console=Console(json=as_json)
    )
    if as_json:
        print(json.dumps(told), flush=True)
    raise typer.Exit(code)


Datasets = Annotated[
    list[str] | None, typer.Option("--dataset", help="One of the source's, or another; repeatable.  [default: its own]")
]
Backbones = Annotated[
    list[str] | None, typer.Option("--backbone", help="mf or lightgcn; repeatable.  [default: as in the source]")
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A row or line, by its name; repeatable.  [default: all]")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Models of each row, refitted with other seeds.")]
Trials = Annotated[
    int, typer.Option("--trials", min=0, help="Trials of the search on validation; 0: settings as they stand.")
]
Quick = Annotated[bool, typer.Option("--quick", help="2 epochs, 2 trials, 2 seeds: only to see that it works.")]
AsPublished = Annotated[
    bool, typer.Option("--as-published", help="Look at the test part as the source does; the runs say so.")
]


def _verb(name: str) -> Callable[..., None]:
    """The command of one table or figure."""

    def command(
        dataset: Datasets = None,
        backbone: Backbones = None,
        method: Methods = None,
        seeds: Seeds = 5,
        trials: Trials = 8,
        quick: Quick = False,
        as_published: AsPublished = False,
        local: Local = False,
        as_json: Json = False,
        tracking: Tracking = None,
        experiment: Experiment = None,
        storage: Storage = None,
        ray_address: RayAddress = None,
    ) -> None:
        import json

        from orchestrator.console import Console
        from orchestrator.published import reproduce as published_verb
        from orchestrator.published.table import Effort

        settings = resolved(tracking=tracking, experiment=experiment, storage=storage, ray_address=ray_address)
        effort = Effort(seeds, trials, quick, local, as_published)
        asked = published_verb.Asked(name, tuple(dataset or ()), tuple(backbone or ()), tuple(method or ()))
        told, code = published_verb.reproduce(asked, settings, effort, Console(json=as_json))
        if as_json:
            print(json.dumps(told), flush=True)
        raise typer.Exit(code)

    return command


_ABOUT = {table.id: (table.title, table.source) for table in TABLES.values()}
_ABOUT |= {figure.id: (figure.title, figure.source) for figure in FIGURES.values()}
for _id, (_title, _source) in _ABOUT.items():
    reproduce.command(_id, help=f"{_title} ({_source}).")(_verb(_id))
