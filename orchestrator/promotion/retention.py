"""Which models MLflow may lose: neither those of an alias, nor recent ones, winners, or what a record needs.

A removed version and its logged model are marked as deleted in MLflow. Its garbage collection then frees the files.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import UNAVAILABLE, UserError, mask, one_line, plural
from orchestrator.promotion.audit_log import AuditLog
from orchestrator.registry import logged_model
from orchestrator.registry import models as registry
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import Settings
from orchestrator.tracking.client import all_pages, all_runs

ALIAS = "has an alias"
PROMOTED = "was promoted"
RECENT = "is recent"
WINNER = "is a sweep's winner"
NEEDED = "a record starts from it"
RUNNING = "its run is running"
INIT = "orchestrator.init"

MLFLOW = "import sys; from mlflow.cli import cli; cli(sys.stdin.read().splitlines())"
"""MLflow's command with arguments from standard input: everyone on the machine can read those of a command line."""


@dataclass(frozen=True, slots=True)
class Removable:
    """A model that nothing needs: its id, and name and version if it is registered."""

    model_id: str
    name: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.name}/{self.version}" if self.version else f"{self.name} ({self.model_id}), not registered"


@dataclass(frozen=True, slots=True)
class Survey:
    """What can be removed, and why the other models are kept."""

    removable: tuple[Removable, ...]
    kept: Mapping[str, int]


def survey(settings: Settings, keep: int) -> Survey:
    """The models that can be removed when the last ``keep`` versions of each are kept.

    Of models that are not registered the last ``keep`` of each experiment stay. Models that were not made by runs of
    this program are not looked at. Raises UserError (exit 3) when MLflow does not answer.
    """
    try:
        return _survey(settings, keep)
    except registry.outage_errors() as error:
        raise UserError(f"MLflow's models cannot be listed: {one_line(error)}", code=UNAVAILABLE) from None


def remove(settings: Settings, models: Iterable[Removable]) -> tuple[list[Removable], list[str]]:
    """Mark models as deleted. Returns those removed, and error messages.

    One that has got an alias since the survey, or was registered, stays.
    """
    client = registry.client(settings)
    removed: list[Removable] = []
    troubles: list[str] = []
    for model in models:
        try:
            if model.version is not None:
                if model.version in set(map(str, client.get_registered_model(model.name).aliases.values())):
                    continue
                client.delete_model_version(model.name, model.version)
            elif client.search_model_versions(f"source_path = 'models:/{model.model_id}'"):
                continue
            client.delete_logged_model(model.model_id)
            removed.append(model)
        except registry.outage_errors() as error:
            troubles.append(f"{model} could not be removed: {one_line(error)}")
    return removed, troubles


def free(settings: Settings, removed: Sequence[Removable]) -> str:
    """Free the files of removed models by MLflow's garbage collection, where that touches nothing else.

    Returns a sentence: what was freed, or the command that frees it. Of a server only its administrator can.
    """
    ids = ",".join(model.model_id for model in removed)
    words = ["gc", "--backend-store-uri", str(settings.tracking), "--logged-model-ids", ids]
    if str(settings.tracking).startswith("http"):
        words[2] = "THE_SERVERS_STORE"
        return f"The server's administrator frees the files: mlflow {' '.join(words)}"
    if others := _deleted(settings):
        return mask(f"Files are not freed, since that would also erase {others}: mlflow {' '.join(words)}")
    words += ["--tracking-uri", str(settings.tracking)]
    command = [sys.executable, "-c", MLFLOW]
    done = subprocess.run(command, input="\n".join(words), capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return mask(f"Files are not freed ({reason}): mlflow {' '.join(words)}")
    return f"The files of {plural(len(removed), 'model')} are freed"


def _survey(settings: Settings, keep: int) -> Survey:
    log = AuditLog(settings)
    client = log.client
    experiments = [one.experiment_id for one in all_pages(client.search_experiments)]
    logged = all_pages(client.search_logged_models, experiments) if experiments else ()
    ours = {one.model_id: one for one in logged if logged_model.OUTCOME_TAG in one.tags}
    runs = {run: registry.existing_run(client, run) for run in {one.source_run_id for one in ours.values()}}
    needed = _starting_points(settings, client, experiments)
    judged: list[tuple[Removable, str | None]] = []
    registered: set[str] = set()
    by_name: dict[str, list[Any]] = {}
    for version in all_pages(client.search_model_versions):
        by_name.setdefault(version.name, []).append(version)
    for name, some in sorted(by_name.items()):
        versions = sorted(some, key=lambda one: -int(one.version))
        aliases = set(map(str, client.get_registered_model(name).aliases.values()))
        events = log.events(name)
        moved = (event for event in events if event.outcome != "refused")  # a writer may have died after its move
        promoted = {version for event in moved for version in (event.version, event.before)}
        winners: set[str] = set()
        for rank, version in enumerate(versions):
            model_id = str(version.source).removeprefix("models:/")
            registered.add(model_id)
            if model_id not in ours:
                continue
            run = runs.get(version.run_id)
            wins = _is_sweep(run) and version.run_id not in winners
            winners.add(version.run_id)  # an earlier version of the same sweep is an earlier winner or session
            reason = _reason(
                {
                    ALIAS: str(version.version) in aliases,
                    PROMOTED: str(version.version) in promoted,
                    RECENT: rank < keep,
                    WINNER: wins,
                    NEEDED: f"{name}/{version.version}" in needed,
                    RUNNING: _is_running(run),
                }
            )
            judged.append((Removable(model_id, name, str(version.version)), reason))
    latest: Counter[str] = Counter()
    for model in sorted(ours.values(), key=lambda one: -one.creation_timestamp):
        if model.model_id in registered:
            continue
        run = runs.get(model.source_run_id)
        latest[model.experiment_id] += 1
        recent = latest[model.experiment_id] <= keep
        reason = _reason({RECENT: recent, WINNER: _is_sweep(run), RUNNING: _is_running(run)})
        judged.append((Removable(model.model_id, model.name, None), reason))
    removable = tuple(model for model, reason in judged if not reason)
    return Survey(removable, Counter(reason for _, reason in judged if reason))


def _reason(holds: Mapping[str, bool]) -> str | None:
    return next((reason for reason, true in holds.items() if true), None)


def _is_sweep(run: Any) -> bool:
    return run is not None and run.data.tags.get("orchestrator.kind") == "sweep"


def _is_running(run: Any) -> bool:
    return run is not None and run.info.status == "RUNNING"


def _starting_points(settings: Settings, client: Any, experiments: Sequence[str]) -> set[str]:
    """The versions that ``init`` of a record here or in MLflow names: its repetition needs them."""
    references = [run.data.tags[INIT] for run in all_runs(client.search_runs, experiments, f"tags.`{INIT}` LIKE '%'")]
    for folder in run_lookup.folders(settings.storage):
        spec = folder.record["spec"].get("experiment") or folder.record["spec"].get("sweep") or {}
        references.append(spec.get("plan", {}).get("init") or "")
    return {reference.partition("#")[0] for reference in references}


def _deleted(settings: Settings) -> str | None:
    """What else in the store is marked as deleted, and would be erased too."""
    from mlflow.entities import ViewType

    client = registry.client(settings)
    if gone := client.search_experiments(view_type=ViewType.DELETED_ONLY):
        return f"the deleted experiment {gone[0].name}"
    experiments = [one.experiment_id for one in all_pages(client.search_experiments)]
    runs = client.search_runs(experiments, run_view_type=ViewType.DELETED_ONLY, max_results=1) if experiments else []
    return f"the deleted run {runs[0].info.run_id}" if runs else None
