"""Cache of runs and sweeps: their names are derived from their specs, and finished ones are reused."""

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
from orchestrator.search.journal import JOURNAL
from orchestrator.storage import generations, records
from orchestrator.storage.object_sync import STOP
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import sweep as sweeps

USABLE = ("finished", "partial")


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
        file = self.folder / ENVIRONMENT
        sources = json.loads(file.read_text()).get("sources", ()) if file.exists() else ()
        return {one["commit"][:12] + "-dirty" * bool(one.get("dirty")) for one in sources if one.get("commit")}


class QuietConsole(Console):
    """Console of one run among many: shows only its live view; lines are written only to its log."""

    def say(self, text: str = "") -> None:
        self._write_log(text)

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Does nothing: the report of the sweep has the trials."""


def run(spec: ExperimentSpec, settings: Settings, local: bool, about: str) -> Done:
    """Run ``spec``, resume it, or return its finished run. Raises UserError, RunFailed or Interrupted."""
    name = named(about, f"seed{spec.seed}", spec.fingerprint(), spec.workload, spec.params, settings)
    return _once(
        name,
        settings,
        lambda: driver.run(spec, settings, driver.Options(local=local, name=name, keep="none"), QuietConsole()),
        lambda folder: driver.resume(folder, settings, QuietConsole()),
    )


def sweep(spec: SweepSpec, settings: Settings, local: bool, about: str) -> Done:
    """Run the sweep ``spec``, resume it, or return the finished one.

    Raises UserError, RunFailed (all trials failed) or Interrupted.
    """
    identity = digest([spec.fingerprint(), spec.search.trials])
    name = named(about, "search", identity, spec.workload, spec.fixed, settings)
    return _once(
        name,
        settings,
        lambda: sweeps.sweep(spec, settings, driver.Options(local=local, name=name), QuietConsole()),
        lambda folder: sweeps.resume(folder, settings, QuietConsole(), sweeps.ResumeOptions()),
    )


def named(about: str, part: str, identity: str, workload: str, params: Mapping[str, Any], settings: Settings) -> str:
    """The name ``about-part-1a2b3c4d5e``, whose digest depends on the spec and on the content of the dataset."""
    data = preflight.dataset(workload, params, settings.data)
    return f"{about[:70]}-{part}-{digest([identity, data])[:10]}"


def _once(name: str, settings: Settings, start: Callable[[], Result], resume: Callable[[RunFolder], Result]) -> Done:
    folder = records.find_here(settings.storage, name)
    if folder is not None and folder.status() in USABLE:
        folder = folder.fetch()
        return Done(folder.path, folder.record["result"], reused=True)
    if folder is not None and _never_started(folder):
        for each in generations.of_run(settings.storage, name):
            shutil.rmtree(settings.storage / each)
        folder = None
    result = start() if folder is None else resume(folder)
    if (result.folder / STOP).exists():  # the stop was requested too late to interrupt this run
        raise Interrupted(f"orchestrator status {name}")
    return Done(result.folder, result.to_json(), reused=False)


def _never_started(folder: RunFolder) -> bool:
    """Whether it is a sweep that was stopped before it had a journal, so that it cannot be resumed."""
    return (
        folder.record["kind"] == "sweep"
        and not folder.has_live_driver()
        and not (folder.fetch().path / JOURNAL).exists()
    )
