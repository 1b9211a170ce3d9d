"""A Ray Train group, watched by the driver: its rows arrive, and what is lost or taken away is begun anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orchestrator.cluster.connection import check_fit, check_storage, cluster
from orchestrator.cluster.fair_share import sharing
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.console import duration
from orchestrator.engine.loop import Diverged, Progress, Row
from orchestrator.errors import RunFailed
from orchestrator.runs import reports, worker
from orchestrator.runs.session import Session
from orchestrator.runs.train import INBOX, RETRIES, Stopped, cause, start
from orchestrator.storage.disk import check_writable
from orchestrator.storage.names import TRAIN
from orchestrator.storage.object_sync import bring
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    from orchestrator.cluster.reservation import Reserved

PATIENCE_SECONDS = 10.0
"""After so long a user is told what is being waited for."""

LOST_SECONDS = 600.0
"""How long a run waits for workers in the place of those that it had."""

Holding = Callable[[Resources], AbstractContextManager[None]]
"""A context for the time in which workers hold their devices."""


def train(
    spec: ExperimentSpec,
    folder: RunFolder,
    settings: Settings,
    session: Session,
    rows: Callable[[list[Row]], None],
    holding: Holding,
) -> bool:
    """Run ``spec`` on a Ray Train group, handing rows to ``rows`` as they arrive.

    Returns False when it was stopped before its end. Raises RunFailed or UserError when a worker did.
    """
    from orchestrator.cluster.preemption import stop_with_node

    with cluster(settings.ray_address) as nodes, session.on_cluster(), stop_with_node(session.interrupts):
        check_fit(nodes, spec.resources)
        check_storage(settings.storage)
        with sharing(folder.id, settings, spec.resources, 1, session.console.say):
            return follow(spec, folder.path, settings.data, session, rows, holding=holding)


def follow(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    *,
    resume: Path | None = None,
    selected: Progress | None = None,
    holding: Holding = lambda resources: nullcontext(),
) -> bool:
    """Run ``spec`` on the connected cluster with its outcome below ``folder``; else as :func:`train`.

    ``resume`` is a checkpoint to start from when the folder has none of its own, ``selected`` a selection that
    only wants its refit. Where a node is being taken away or an elastic run can grow, the group saves and ends, and
    another one goes on; so it does where an elastic run has lost workers, from the last checkpoint.
    """
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError

    from orchestrator.cluster.reservation import reserve

    home, lost, begun = folder / TRAIN, 0, False
    if worker.outcome_of(folder):
        if (home / INBOX).exists():  # its driver may have died before it read the last of them
            with (home / INBOX).open() as inbox:
                deliver(inbox, rows)
        return True
    while True:
        with reserve(spec.resources, _patience(session, begun)) as place:
            if place is None:
                return False
            begun = True
            try:
                with holding(place.resources):
                    failure = _watch(spec, folder, data, session, rows, place, resume, selected)
            except (TrainingFailedError, RayError) as error:
                check_writable(session.settings.storage)  # where it can not be written that is the cause
                lost += 1
                if spec.resources.min_workers is None or lost > RETRIES:
                    raise RunFailed(session.folder.id, cause(error), str(session.folder.log)) from error
                session.console.say(f"A worker was lost ({cause(error)}); going on from the last checkpoint")
                continue
        if isinstance(failure, Stopped) and not session.interrupts.asked():
            session.console.say("The workers have saved, and others go on")
            continue
        break
    if isinstance(failure, Diverged):
        rows(list(failure.rows))
    if failure is not None and not isinstance(failure, Stopped):
        raise reports.failed(session.folder, failure)
    if not session.interrupts.asked():
        bring(folder, worker.OUTCOME, worker.WRITTEN)
    return worker.outcome_of(folder) is not None


def _watch(
    spec: ExperimentSpec,
    folder: Path,
    data: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    place: Reserved,
    resume: Path | None,
    selected: Progress | None,
) -> Exception | None:
    """Start a group and hand over its rows until it has ended. Returns as ``Group.result``."""
    home = folder / TRAIN
    group = start(
        spec,
        home,
        data,
        place.group,
        stop_file=session.folder.stop_file,
        workers=place.resources.workers,
        outcome=folder,
        resume=resume,
        selected=selected,
    )
    with (home / INBOX).open() as inbox:
        ended = False
        while not ended:
            ended = group.ended(0.2)  # before reading: what is written until then is read
            session.interrupts.asked()
            deliver(inbox, rows)
    failure: Exception | None = group.result()
    return failure


def deliver(inbox: IO[str], rows: Callable[[list[Row]], None]) -> None:
    """Hand over the rows that came since the last call."""
    for payload in reports.receive(inbox):
        rows(list(reports.rows_from_json(payload["rows"])))


def _patience(session: Session, begun: bool) -> Callable[[], bool]:
    """Go on waiting until a stop is asked for; say once what for. Who had workers does not wait for ever."""
    began, told = time.monotonic(), [False]

    def waiting() -> bool:
        waited = time.monotonic() - began
        if not told[0] and waited > PATIENCE_SECONDS:
            told[0] = True
            what = "none is there for those it had" if begun else "the cluster is busy with something else"
            session.console.say(f"Waiting for workers: {what}")
        if begun and waited > LOST_SECONDS:
            raise RunFailed(
                session.folder.id,
                f"its workers were lost, and no others came within {duration(LOST_SECONDS)}; go on with "
                f"orchestrator {session.folder.record['kind']} --resume {session.folder.id}",
                str(session.folder.log),
            )
        return not session.interrupts.asked()

    return waiting
