"""The verbs about what was run: status, logs, stop and sync."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.options import Address, Json, Reference, Storage, Tracking
from orchestrator.verbs.common import reachable, resolved

app = typer.Typer()


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

    raise typer.Exit(control.status(resolved(storage=storage), reference, wait=wait, address=address, as_json=as_json))


@app.command()
def logs(
    reference: Reference = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    address: Address = None,
    storage: Storage = None,
) -> None:
    """The log of a run, a sweep or a job."""
    from orchestrator import control

    control.logs(resolved(storage=storage), reference, follow=follow, address=address)


@app.command()
def stop(reference: Reference = "latest", address: Address = None, storage: Storage = None) -> None:
    """Stop a run, a sweep or a job cleanly; it can be resumed."""
    from orchestrator import control

    control.stop(resolved(storage=storage), reference, address=address)


@app.command()
def sync(reference: Reference = "latest", storage: Storage = None, tracking: Tracking = None) -> None:
    """Deliver what an MLflow outage kept back."""
    settings = resolved(storage=storage, tracking=tracking)
    reachable(settings)
    from orchestrator import records, session

    print(session.sync(settings, records.find(settings.storage, reference)))
