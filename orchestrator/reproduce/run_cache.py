"""Cache of runs and sweeps: their names are derived from their specs, and finished ones are reused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, SweepSpec, digest
from orchestrator.console import Console
from orchestrator.errors import Interrupted, UserError
from orchestrator.provenance.record import recorded_environment
from orchestrator.runs import driver
from orchestrator.storage import commands, generations, run_lookup
from orchestrator.storage.object_sync import STOP
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import sweep as sweeps

USABLE = ("finished", "partial")

_MOMENT: ContextVar[float | None] = ContextVar("moment", default=None)

STOP_AGAIN_SECONDS = 1.0
"""Interval at which a run whose time is over is asked to stop; a driver that begins removes an earlier request."""


@dataclass(frozen=True)
class Done:
    """A finished run or sweep; ``result`` is the output of ``--json``."""

    folder: Path
    result: Mapping[str, Any]
    reused: bool
    """Whether it was finished before."""

    @property
    def id(self) -> str:
        return generations.run_id(self.folder.name)

    @property
    def commits(self) -> set[str]:
        """The commits of its code, with ``-dirty`` if there were changes; empty if not recorded."""
        sources = recorded_environment(self.folder).get("sources", ())
        return {one["commit"][:12] + "-dirty" * bool(one.get("dirty")) for one in sources if one.get("commit")}


@contextmanager
def until(moment: float) -> Iterator[None]:
    """Within the block, stop the run at ``moment`` of ``time.monotonic()``, as ``orchestrator stop`` does.

    No other run is started then; the block raises Interrupted. The run can be resumed.
    """
    token = _MOMENT.set(moment)
    try:
        yield
    finally:
        _MOMENT.reset(token)


@contextmanager
def _stopped_in_time(name: str, settings: Settings) -> Iterator[None]:
    moment = _MOMENT.get()
    if moment is None:
        yield
        return
    if time.monotonic() >= moment:
        raise Interrupted(commands.for_run(settings.storage / name, "status"))
    over = threading.Event()

    def stop() -> None:
        seconds = max(0.0, moment - time.monotonic())
        while not over.wait(seconds):
            with suppress(UserError):  # the storage is out of reach, for example
                if folder := run_lookup.find_here(settings.storage, name):
                    folder.stop()
            seconds = STOP_AGAIN_SECONDS

    watch = threading.Thread(target=stop, name="stop in time", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


class QuietConsole(Console):
    """Console of one run among many: shows only its live view; lines are written only to its log."""

    def say(self, text: str = "") -> None:
        self._write_log(text)

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Does nothing: the report of the sweep has the trials."""


def run(spec: ExperimentSpec | SweepSpec, settings: Settings, local: bool, about: str) -> Done:
    """Run ``spec``, resume it, or return its finished run or sweep.

    Raises UserError, RunFailed (of a sweep: all trials failed) or Interrupted.
    """
    name = name_of(spec, settings, about)
    if done := finished(name, settings):
        return done
    folder = run_lookup.find_here(settings.storage, name)
    console = QuietConsole()
    with _stopped_in_time(name, settings):
        if isinstance(spec, SweepSpec) and folder:
            result = sweeps.resume(folder, settings, console, sweeps.ResumeOptions())
        elif isinstance(spec, SweepSpec):
            result = sweeps.sweep(spec, settings, driver.Options(local=local, name=name), console)
        elif folder:
            result = driver.resume(folder, settings, console)
        else:
            result = driver.run(spec, settings, driver.Options(local=local, name=name, keep="none"), console)
    if (result.folder / STOP).exists():  # the stop was requested too late to interrupt this run
        raise Interrupted(commands.for_run(settings.storage / name, "status"))
    return Done(result.folder, result.to_json(), reused=False)


def name_of(spec: ExperimentSpec | SweepSpec, settings: Settings, about: str) -> str:
    """The name ``about-seed0-1a2b3c4d5e``. Its digest depends on the spec, on the dataset and on a search's ranges."""
    identity: list[Any] = [spec.fingerprint()]
    if isinstance(spec, SweepSpec):
        params, part = spec.fixed, "search"
        identity += [spec.search.trials, sweeps.search_identity(spec)]
    else:
        params, part = spec.params, f"seed{spec.seed}"
    data = preflight.fingerprint(spec.workload, params, settings.data)
    inputs = preflight.input_files(spec.workload, params)
    return f"{about[:70]}-{part}-{digest([*identity, data, *inputs.values()])[:10]}"


def finished(name: str, settings: Settings) -> Done | None:
    """The finished run or sweep of this name; None if it is not finished."""
    folder = run_lookup.find_here(settings.storage, name)
    if folder is None or folder.status() not in USABLE:
        return None
    folder = folder.fetch()
    return Done(folder.path, folder.record["result"], reused=True)
