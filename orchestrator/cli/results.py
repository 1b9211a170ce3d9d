"""The verbs about runs and sweeps: ls, top, best, compare, report, accounts, status, logs, stop and sync."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.common import out, resolved, write
from orchestrator.config.options import Address, Json, Reference, Storage, Tracking
from orchestrator.errors import FAILED

if TYPE_CHECKING:
    from orchestrator.storage.records import RunFolder

app = typer.Typer()


@app.command()
def status(
    reference: Reference = "latest",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with its exit code.")] = False,
    address: Address = None,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Show the status of a run, a sweep, a trial or a job.

    Example: orchestrator status latest --wait
    """
    from orchestrator.cli import run_control

    raise typer.Exit(
        run_control.status(resolved(storage=storage), reference, wait=wait, address=address, as_json=as_json)
    )


@app.command()
def logs(
    reference: Reference = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until it ends.")] = False,
    address: Address = None,
    storage: Storage = None,
) -> None:
    """Print the log of a run, a sweep, a trial or a job.

    Example: orchestrator logs latest --follow
    """
    from orchestrator.cli import run_control

    raise typer.Exit(run_control.logs(resolved(storage=storage), reference, follow=follow, address=address))


@app.command()
def stop(
    reference: Reference = "latest",
    verdict: Annotated[
        Literal["pruned", "failed"], typer.Option("--as", help="How a trial ends; a failed one has no value.")
    ] = "pruned",
    address: Address = None,
    storage: Storage = None,
) -> None:
    """Stop a run, a sweep or a job cleanly; it can be resumed. Or end one trial of a sweep.

    Example: orchestrator stop latest
    """
    from orchestrator.cli import run_control

    run_control.stop(resolved(storage=storage), reference, verdict, address=address)


@app.command()
def add(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Id of a sweep, or latest.")],
    words: Annotated[list[str], typer.Argument(metavar="key=value ...", help="Searched parameters of the trial.")],
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Add a trial to a running sweep.

    The sampler suggests the parameters that are not given.

    Example: orchestrator add latest lr=0.001
    """
    from orchestrator.config.parsing import read_overrides
    from orchestrator.storage import run_lookup
    from orchestrator.sweeps import steering

    settings = resolved(storage=storage)
    folder = run_lookup.find(settings.storage, sweep, "sweep")
    params = steering.add(folder, settings, read_overrides(words))
    shown = "  ".join(f"{name}={value}" for name, value in params.items())
    when = "" if folder.status() == "running" else f", when it is resumed: {folder.resume_command}"
    out({"sweep": folder.id, "params": params}, f"{folder.id} takes one more trial: {shown}{when}", as_json)


@app.command()
def sync(
    reference: Annotated[str, typer.Argument(metavar="ID", help="Id of a run or a sweep, or latest.")] = "latest",
    storage: Storage = None,
    tracking: Tracking = None,
) -> None:
    """Send results that an outage delayed.

    To MLflow and the object store, of one run or sweep, by default the newest.

    Example: orchestrator sync latest
    """
    settings = resolved(storage=storage, tracking=tracking)
    from orchestrator.runs import model_upload
    from orchestrator.storage import run_lookup

    print(model_upload.sync(settings, run_lookup.find(settings.storage, reference)))


@app.command()
def audit(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Value of the parameter dataset.")],
    as_json: Json = False,
    storage: Storage = None,
    tracking: Tracking = None,
) -> None:
    """Show the looks at a dataset's test split.

    Each is recorded before the split is evaluated, in a chain that is checked. Exit 1 if rows were changed or removed.

    Example: orchestrator audit ml-100k
    """
    from orchestrator.report import audit as view

    audits = view.audits(resolved(storage=storage, tracking=tracking), dataset)
    out([one.to_json() for one in audits], "\n\n".join(map(view.as_text, audits)), as_json)
    if any(one.faults for one in audits):
        raise typer.Exit(FAILED)


References = Annotated[list[str], typer.Argument(metavar="ID [ID ...]", help="Ids of runs and sweeps, or latest.")]
OUTPUT = typer.Option("--output", "-o", metavar="FILE", help="Output file.")
Output = Annotated[Path | None, OUTPUT]


@app.command()
def ls(
    kind: Annotated[Literal["run", "sweep"] | None, typer.Option("--kind", help="Only runs, or only sweeps.")] = None,
    workload: Annotated[str | None, typer.Option("--workload", help="Only those of one workload.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="Only running, finished, failed, lost ...")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number.")] = 20,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """List runs and sweeps, newest first.

    Example: orchestrator ls --kind sweep --status finished
    """
    from orchestrator.report import listing

    rows, total = listing.listed(resolved(storage=storage), kind=kind, workload=workload, status=status, limit=limit)
    out(rows, listing.as_text(rows, total, is_selection=any((kind, workload, status))), as_json)


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once.  [default: until Ctrl-C, on a terminal]")] = False,
    every: Annotated[float, typer.Option("--every", min=0.2, metavar="S", help="Seconds between updates.")] = 2.0,
    as_json: Json = False,
    storage: Storage = None,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Ray cluster to show.  [default: none]")
    ] = None,
) -> None:
    """Show the cluster and its runs, live on a terminal.

    Includes runs that ended in the last hour.

    Example: orchestrator top --once
    """
    from orchestrator.cli import top as view

    view.top(resolved(storage=storage, ray_address=ray_address), once=once, as_json=as_json, every=every)


@app.command()
def best(
    reference: Annotated[str, typer.Argument(metavar="[SWEEP]", help="Id of a sweep, or latest.")] = "latest",
    top: Annotated[int, typer.Option("--top", min=1, help="Number of trials, best first.")] = 1,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Show the winner of a sweep, or the best trial so far.

    Example: orchestrator best latest --top 5
    """
    from orchestrator.report import listing
    from orchestrator.storage import run_lookup

    trials = listing.best(run_lookup.find(resolved(storage=storage).storage, reference, "sweep"), top)
    out(trials if top > 1 else trials[0], listing.best_as_text(trials), as_json)


@app.command()
def compare(
    references: References,
    by: Annotated[str | None, typer.Option("--by", metavar="PARAM[,PARAM]", help="Parameters to group by.")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", help="Repeatable.  [default: the objectives]")] = None,
    split: Annotated[Literal["validation", "test"], typer.Option("--split", help="Split to use.")] = "validation",
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="VALUE", help="The group to test against.  [default: the best]")
    ] = None,
    test: Annotated[
        Literal["welch", "permutation"], typer.Option("--test", help="Test over seeds: Welch's t, or permutation.")
    ] = "welch",
    mixed: Annotated[bool, typer.Option("--mixed", help="Allow different workloads or data.")] = False,
    form: Annotated[
        Literal["table", "markdown", "csv", "json", "html"], typer.Option("--format", help="Output format.")
    ] = "table",
    output: Output = None,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Compare runs and sweeps by any parameter, over seeds.

    Shows mean, spread and significance of the difference.

    Example: orchestrator compare latest --by loss,lr
    """
    from orchestrator.report import comparison, comparison_output

    folders = _folders(references, storage)
    keys = [key.strip() for key in (by or "").split(",") if key.strip()]
    result = comparison.compare(
        folders, by=keys, metrics=metric or (), split=split, baseline=baseline, test=test, mixed=mixed
    )
    write(comparison_output.text(result, "json" if as_json else form, folders), output)


@app.command()
def report(
    references: References,
    output: Annotated[Path, OUTPUT] = Path("report.html"),
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Write an HTML page about a run or a sweep, or several.

    Several are compared. The page needs no network.

    Example: orchestrator report latest --output report.html
    """
    from orchestrator.report import comparison_output

    write(comparison_output.report(_folders(references, storage)), output)
    out({"report": str(output.absolute())}, f"Written: {output}", as_json)


@app.command()
def accounts(
    by: Annotated[
        Literal["trial", "sweep", "workload", "person", "day"], typer.Option("--by", help="What to sum hours by.")
    ] = "sweep",
    since: Annotated[str | None, typer.Option("--since", metavar="DATE", help="Hours since this date.")] = None,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """GPU and CPU hours by trial, sweep, workload, person or day.

    Devices count while they are reserved, idle or not. With ORCHESTRATOR_PRICES also their cost.

    Example: orchestrator accounts --by person --since 2026-01-01
    """
    from orchestrator.report.device_hours import device_hours
    from orchestrator.storage import run_lookup, usage_log

    moment = None if since is None else usage_log.moment(since)
    settings = resolved(storage=storage)
    rows, silent = usage_log.table(run_lookup.folders(settings.storage), by, moment)
    prices = settings.prices
    rows = [row | {"cost": prices and prices.cost(row["gpu_hours"], row["cpu_hours"])} for row in rows]
    out(rows, device_hours(rows, by, silent, prices), as_json)


def _folders(references: list[str], storage: str | None) -> list[RunFolder]:
    """The folders of the references, without duplicates."""
    from orchestrator.storage import run_lookup

    root = resolved(storage=storage).storage
    return list({folder.id: folder for folder in (run_lookup.find(root, name) for name in references)}.values())
