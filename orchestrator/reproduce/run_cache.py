"""Runs and sweeps that are done once: named by what they are, they are found again, or gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, SweepSpec, digest
from orchestrator.console import Console
from orchestrator.errors import Interrupted
from orchestrator.provenance.record import ENVIRONMENT
from orchestrator.runs import driver
from orchestrator.runs.session import Result
from orchestrator.search.study import JOURNAL
from orchestrator.storage import generations, records
from orchestrator.storage.object_sync import STOP
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import sweep as sweeps

USABLE = ("finished", "partial")


@dataclass(frozen=True)
class Done:
    """A run or sweep that has ended: its ``result`` is what ``--json`` prints."""

    folder: Path
    result: Mapping[str, Any]
    found: bool
    """Whether it was there already."""

    @property
    def id(self) -> str:
        return generations.run_id(self.folder.name)

    @property
    def commits(self) -> set[str]:
        """Of the code that it was run with, ``-dirty`` with changes; empty where that was not recorded."""
        file = self.folder / ENVIRONMENT
        sources = json.loads(file.read_text()).get("sources", ()) if file.exists() else ()
        return {one["commit"][:12] + "-dirty" * bool(one.get("dirty")) for one in sources if one.get("commit")}


class QuietConsole(Console):
    """The console of one run among many: on a terminal its progress shows, its lines go to its log alone."""

    def say(self, text: str = "") -> None:
        if self._log:
            super()._wipe()
            self._log.write(f"{text}\n")

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Trials are in the sweep's report."""


def run(spec: ExperimentSpec, settings: Settings, local: bool, about: str) -> Done:
    """The run of ``spec``. Raises UserError, RunFailed or Interrupted."""
    name = named(about, f"seed{spec.seed}", spec.fingerprint(), spec.workload, spec.params, settings)
    return _once(
        name,
        settings,
        lambda: driver.run(spec, settings, driver.Options(local=local, name=name, keep="none"), QuietConsole()),
        lambda folder: driver.resume(folder, settings, QuietConsole()),
    )


def sweep(spec: SweepSpec, settings: Settings, local: bool, about: str) -> Done:
    """The sweep of ``spec``. Raises UserError, RunFailed (all trials failed) or Interrupted."""
    identity = digest([spec.fingerprint(), spec.search.trials])
    name = named(about, "search", identity, spec.workload, spec.fixed, settings)
    return _once(
        name,
        settings,
        lambda: sweeps.sweep(spec, settings, driver.Options(local=local, name=name), QuietConsole()),
        lambda folder: sweeps.resume(folder, settings, QuietConsole(), sweeps.ResumeOptions()),
    )


def named(about: str, part: str, identity: str, workload: str, params: Mapping[str, Any], settings: Settings) -> str:
    """``about-part-1a2b3c4d5e``: another spec, or other data under the same name, gives another one."""
    data = preflight.dataset(workload, params, settings.data)
    return f"{about[:70]}-{part}-{digest([identity, data])[:10]}"


def _once(name: str, settings: Settings, begin: Callable[[], Result], go_on: Callable[[RunFolder], Result]) -> Done:
    folder = records.known(settings.storage, name)
    if folder is not None and folder.status() in USABLE:
        folder = folder.fetch()
        return Done(folder.path, folder.record["result"], found=True)
    if folder is not None and _stillborn(folder):
        for each in generations.of_run(settings.storage, name):
            shutil.rmtree(settings.storage / each)
        folder = None
    result = begin() if folder is None else go_on(folder)
    if (result.folder / STOP).exists():  # asked for when only its end was left, which then came first
        raise Interrupted(f"orchestrator status {name}")
    return Done(result.folder, result.to_json(), found=False)


def _stillborn(folder: RunFolder) -> bool:
    """Whether it is a sweep that was stopped before it had a journal: there is nothing to go on with."""
    return (
        folder.record["kind"] == "sweep"
        and not folder.has_live_driver()
        and not (folder.fetch().path / JOURNAL).exists()
    )
