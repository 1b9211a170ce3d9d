"""The verbs workloads, schema, data, doctor, ui, dashboard, submit and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import resolved
from orchestrator.config.options import Json, RayAddress, Storage, Tracking
from orchestrator.errors import UserError

app = typer.Typer()
data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Datasets: list, fetch, verify.",
    epilog="Example: orchestrator data fetch ml-100k",
)
app.add_typer(data, name="data")


@app.command()
def workloads(
    name: Annotated[str | None, typer.Argument(help="Workload to list the parameters of, or file.py:name.")] = None,
    as_json: Json = False,
) -> None:
    """List the workloads, or the parameters of one.

    Shows type, default, bounds and source of each parameter.

    Example: orchestrator workloads recommender
    """
    from orchestrator.cli import describe

    if name is None:
        describe.print_workloads(as_json)
    else:
        describe.print_parameters(_named(name), as_json)


def _named(workload: str) -> str:
    """The name of a workload, with consent to a file of the user's."""
    if ":" not in workload:
        return workload
    from orchestrator.search.trusted_spaces import named_workload

    return str(named_workload(workload, resolved().home))


@app.command()
def schema(
    workload: Annotated[str, typer.Argument(help="Workload.")],
    output: Annotated[Path | None, typer.Option("--output", help="File to write.  [default: standard output]")] = None,
) -> None:
    """Print the JSON Schema of a workload's configuration file.

    Editors check the file and complete names by it.

    Example: orchestrator schema recommender --output recommender.schema.json
    """
    import json

    from orchestrator.cli.common import write
    from orchestrator.config import schema as schemas

    write(json.dumps(schemas.json_schema(_named(workload)), indent=1), output)


@data.command("list")
def data_list(as_json: Json = False) -> None:
    """List the datasets, and which are present.

    Example: orchestrator data list
    """
    from orchestrator.cli import describe

    describe.print_datasets(resolved(), as_json)


@data.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="Dataset.")]) -> None:
    """Download a dataset from its official source and verify it.

    Example: orchestrator data fetch ml-100k
    """
    from workloads.data import datasets
    from workloads.data.errors import DataError, DataUnreachable

    settings = resolved()
    try:
        fetched = datasets.fetch(name, settings.data)
        datasets.check(name, settings.data)
    except DataUnreachable as error:
        raise UserError(str(error), code=3) from None
    except DataError as error:
        raise UserError(str(error)) from None
    for path in fetched:
        print(path)
    dataset = datasets.dataset(name)
    if dataset.files:
        print(f"{name} is present and intact: {dataset.folder_in(settings.data)}")
    else:
        print(f"{name} has no files to fetch: it is {dataset.obtain or 'generated'}")


@data.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets.  [default: all that are present]")] = None,
) -> None:
    """Read every byte of datasets and list problems.

    Exit 2 if there is one.

    Example: orchestrator data verify ml-100k
    """
    from orchestrator.cli import describe

    raise typer.Exit(describe.verify_datasets(resolved(), names or []))


@app.command()
def doctor(as_json: Json = False, tracking: Tracking = None, ray_address: RayAddress = None) -> None:
    """Check this machine and suggest a fix for each problem.

    Exit 3 if there is a problem.

    Example: orchestrator doctor
    """
    from orchestrator.cli import doctor as checks

    raise typer.Exit(checks.run(resolved(tracking=tracking, ray_address=ray_address), as_json))


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")] = 5000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    tracking: Tracking = None,
) -> None:
    """Serve MLflow's UI on the configured store.

    Example: orchestrator ui --port 5001
    """
    from orchestrator.cli import ui as server

    server.serve(resolved(tracking=tracking), host, port)


@app.command()
def dashboard(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Id of a sweep, or latest.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")] = 8080,
    storage: Storage = None,
) -> None:
    """Serve optuna-dashboard on a copy of a sweep's trials.

    It follows a running sweep. What is changed or deleted on the page is the copy's.

    Example: orchestrator dashboard latest
    """
    from orchestrator.cli import dashboard as server

    server.serve(resolved(storage=storage), sweep, port)


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- VERB ...", show_default=False)] = None,
    address: Annotated[str | None, typer.Option("--address", help="Dashboard, http://HOST:8265.")] = None,
    working_dir: Annotated[Path | None, typer.Option("--working-dir", help="Code to send.  [default: none]")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Queues share the cluster equally.  [default: default]")
    ] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", help="Within a queue, 2 gets twice as much as 1.  [default: 1]")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job and exit with its code.")] = True,
    as_json: Json = False,
) -> None:
    """Run a verb as a Ray job on a cluster.

    Example: orchestrator submit -- sweep recommender --trials 8
    """
    from orchestrator.jobs import submission as jobs

    _check_gates(command or [])
    code = jobs.submit(
        command or [],
        address=address,
        working_dir=working_dir,
        queue=queue,
        priority=priority,
        wait=wait,
        as_json=as_json,
    )
    raise typer.Exit(code)


def _check_gates(command: list[str]) -> None:
    """Raise UserError for a promotion that would not see the gates of the home here."""
    if command[:1] != ["promote"] or any(word.split("=")[0] in ("--gates", "--force") for word in command):
        return
    from orchestrator.promotion.gates import FILE

    settings = resolved()
    if settings.gates is None and (settings.home / FILE).exists():
        raise UserError(
            "A job on a cluster does not read the gates in the home of this machine", got=settings.home / FILE,
            fix="Name a file there with --gates, or send this one: submit --working-dir FOLDER -- promote ... --gates "
            "gates.yaml",
        )  # fmt: skip


@app.command("jobs")
def jobs_command(
    address: Annotated[str | None, typer.Option("--address", help="Dashboard, http://HOST:8265.")] = None,
    as_json: Json = False,
) -> None:
    """List the jobs of the cluster, newest first.

    Example: orchestrator jobs --address http://head:8265
    """
    from orchestrator.jobs import submission as jobs

    jobs.list_jobs(address=address, as_json=as_json)
