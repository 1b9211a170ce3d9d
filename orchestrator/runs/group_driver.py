"""The driver's side of a run on a Ray Train group: receive its rows, and restart it after a loss or a preemption."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO

from ray.exceptions import RayError
from ray.train import TrainingFailedError

from orchestrator.cluster.connection import check_fit, cluster
from orchestrator.cluster.fair_share import sharing
from orchestrator.cluster.lost_devices import LostDevices
from orchestrator.cluster.preemption import stop_with_node
from orchestrator.cluster.reservation import wait_for_room
from orchestrator.cluster.shared_storage import check_storage
from orchestrator.cluster.train_group import Group, remove_groups
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.console import duration
from orchestrator.engine.loop import Diverged, Progress, Row
from orchestrator.errors import RunFailed
from orchestrator.runs import heartbeat, micro_batches, reports, worker
from orchestrator.runs.session import Session
from orchestrator.runs.train import (
    INBOX,
    RETRIES,
    Stopped,
    failure_text,
    lost_a_process,
    needs_less_memory,
    result,
    start,
)
from orchestrator.storage.disk import check_writable
from orchestrator.storage.names import TRAIN
from orchestrator.storage.object_sync import download

PATIENCE_SECONDS = 10.0
"""Time after which the console says what the run waits for."""

LOST_SECONDS = 600.0
"""Time a run waits to replace lost workers."""

END_SECONDS = 20.0
"""Time a group that has not started has to end."""

Holding = Callable[[Resources], AbstractContextManager[None]]
"""Returns a context for the time in which workers hold their devices."""


def train(
    spec: ExperimentSpec,
    session: Session,
    rows: Callable[[list[Row]], None],
    holding: Holding,
    timeout: float | None = None,
    profile: int | None = None,
) -> bool:
    """Run ``spec`` on a Ray Train group and pass its rows to ``rows``.

    Workers that report nothing for ``timeout`` seconds are killed, and the run fails. Returns False when it was stopped
    before its end. Raises RunFailed or UserError for an error of a worker.
    """
    folder = session.folder
    settings = session.settings
    with (
        cluster(settings.ray_address) as nodes,
        session.on_cluster(),
        stop_with_node(session.interrupts, folder.resume_command),
    ):
        check_fit(nodes, spec.resources)
        check_storage(settings.storage, settings.start_timeout)
        with sharing(folder.id, settings, spec.resources, 1, session.console.say):
            return follow(spec, folder.path, session, rows, holding=holding, timeout=timeout, profile=profile)


def follow(
    spec: ExperimentSpec,
    folder: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    *,
    resume: Path | None = None,
    selected: Progress | None = None,
    holding: Holding = lambda resources: nullcontext(),
    timeout: float | None = None,
    profile: int | None = None,
    devices: LostDevices | None = None,
) -> bool:
    """As :func:`train`, on the connected cluster and with the outcome in ``folder``.

    ``resume`` is a checkpoint to start from when the folder has none, ``selected`` a selection that only needs its
    refit. When a node is being taken away or an elastic run can grow, the group saves and ends, and a new group
    continues. After a lost process a new group continues from the last checkpoint; ``devices`` counts lost
    accelerators. An error of a worker ends the run.
    """
    home = folder / TRAIN
    lost = 0
    had_workers = False
    if worker.outcome_of(folder):
        if (home / INBOX).exists():  # the driver may have died before it read the last rows
            with (home / INBOX).open() as inbox:
                deliver(inbox, rows)
        return True
    while True:
        remove_groups(home)  # left by a killed driver
        resources = wait_for_room(spec.resources, _patience(session, had_workers, devices))
        if resources is None:
            return False
        had_workers = True
        monitor = heartbeat.TrialMonitor(timeout)
        try:
            with holding(resources):
                monitor.begin(0, home)
                group = start(
                    spec,
                    home,
                    session.settings.data,
                    stop_file=session.folder.stop_file,
                    timeouts=session.settings.timeouts,
                    workers=resources.workers,
                    outcome=folder,
                    resume=resume,
                    selected=selected,
                    profile=profile,
                    look=session.look(spec),
                )
                failure = _watch(group, home, session, rows, monitor, devices)
        except (TrainingFailedError, RayError) as error:
            check_writable(session.settings.storage)  # an unwritable storage is the cause then
            small = needs_less_memory(error)
            if small and micro_batches.increase(spec, home, small):
                session.split_batch(micro_batches.chosen(spec, home))
                continue
            lost += 1
            if devices:
                devices.report(failure_text(error))
            if not lost_a_process(error) or lost > RETRIES:
                raise RunFailed(session.folder.id, failure_text(error), str(session.folder.log)) from error
            session.console.say(f"A worker was lost ({failure_text(error)}); continuing from the last checkpoint")
            continue
        if isinstance(failure, Stopped) and not session.interrupts.stop_requested():
            session.console.say("The workers have saved; new workers continue")
            continue
        break
    if isinstance(failure, Diverged):
        rows(list(failure.rows))
    if failure is not None and not isinstance(failure, Stopped):
        raise reports.failed(session.folder, failure)
    if not session.interrupts.stop_requested():
        download(folder, worker.OUTCOME, worker.WRITTEN)
    return worker.outcome_of(folder) is not None


def _watch(
    group: Group,
    home: Path,
    session: Session,
    rows: Callable[[list[Row]], None],
    monitor: heartbeat.TrialMonitor,
    devices: LostDevices | None,
) -> Exception | None:
    """Pass on the rows of a started group until it has ended. Returns that of ``train.result``.

    An error of this process, such as a second Ctrl-C, ends the group, which a connection of a notebook would keep.
    """
    try:
        with (home / INBOX).open() as inbox:
            ended = False
            while not ended:
                ended = group.ended(0.2)  # before reading, so that its last rows are read
                if session.interrupts.stop_requested() and not ended and not group.is_up():
                    group.kill(END_SECONDS)  # there are no workers to save
                    return Stopped()
                if deliver(inbox, rows, session.console.say):
                    monitor.heard(0)
                if devices:
                    devices.poll()
                if monitor.silent():
                    monitor.end(0)
                    heartbeat.kill(home, monitor.timeout or 0.0)
    except BaseException:
        with suppress(Exception):  # the cluster may be the cause
            group.kill(END_SECONDS)
        raise
    if hung := heartbeat.given_up(home):
        return hung
    return result(group)


def deliver(inbox: IO[str], rows: Callable[[list[Row]], None], say: Callable[[str], None] = lambda line: None) -> int:
    """Pass on the rows since the last call, and what the trace shows. Returns the number of reports."""
    payloads = list(reports.receive(inbox))
    for payload in payloads:
        if shown := payload.get("profile"):
            say(shown)
        rows(list(reports.rows_from_json(payload["rows"])))
    return len(payloads)


def _patience(session: Session, had_workers: bool, devices: LostDevices | None) -> Callable[[], bool]:
    """Return a function that says whether to keep waiting for workers.

    It prints once what the run waits for, and takes lost devices. A run that has lost its workers fails after
    ``LOST_SECONDS``.
    """
    since = time.monotonic()
    announced = False

    def waiting() -> bool:
        nonlocal announced
        if devices:
            devices.poll()
        waited = time.monotonic() - since
        if not announced and waited > PATIENCE_SECONDS:
            announced = True
            what = "the lost ones have no replacement yet" if had_workers else "the cluster is busy with something else"
            session.console.say(f"Waiting for workers: {what}")
        if had_workers and waited > LOST_SECONDS:
            raise RunFailed(
                session.folder.id,
                f"its workers were lost and no replacement started within {duration(LOST_SECONDS)}; continue with "
                + session.folder.resume_command,
                str(session.folder.log),
            )
        return not session.interrupts.stop_requested()

    return waiting
