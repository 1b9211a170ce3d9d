"""Find a registered version with its run, and download the files that the run exported. No code of a model is run."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.registry import logged_model, servable
from orchestrator.registry import models as registry
from orchestrator.storage.settings import Settings
from orchestrator.tracking.mlflow_globals import tracking_uri_set

_FILES = "artifacts/model"
"""Path of a run's exported files in its MLflow model."""


@dataclass(frozen=True, slots=True)
class Version:
    """A registered version: ``name`` (``MODEL/NUMBER``), its run's id and tags, its epochs, and its source.

    Of a run that was erased the workload is the only tag.
    """

    name: str
    run_id: str
    tags: dict[str, str]
    epochs: str | None
    source: str | None = None

    @property
    def workload(self) -> str | None:
        return self.tags.get("orchestrator.workload")

    def check_workload(self, workloads: Collection[str], what: str) -> None:
        """Raise UserError, that the version ``what``, unless its workload is one of ``workloads``."""
        if self.workload not in workloads:
            raise UserError(
                f"{self.name} {what}", got=f"a model of {self.workload or 'no known workload'}",
                allowed=f"models of {', '.join(workloads)}",
            )  # fmt: skip


def find(settings: Settings, reference: str) -> Version:
    """The version of ``MODEL@ALIAS``, ``MODEL/VERSION`` or ``MODEL``, the newest. Raises UserError."""
    client = registry.client(settings)
    try:
        model, number = _named(client, reference.removeprefix("models:/"))
        version = registry.version(client, model, number)
        run = registry.existing_run(client, version.run_id)
        tags = dict(run.data.tags) if run else _workload(client, version.source)
    except registry.outage_errors() as error:
        raise unavailable(reference, error) from None
    epochs = (version.tags or {}).get(registry.EPOCH_TAG)
    return Version(f"{model}/{version.version}", version.run_id or "", tags, epochs, version.source)


def resolve(settings: Settings, reference: str) -> str:
    """Convert ``NAME@alias`` or ``NAME/version`` to a ``models:/`` URI; URIs are unchanged. Raises UserError."""
    if reference.startswith(("models:/", "runs:/")):
        return reference
    client = registry.client(settings)
    name, number = _named(client, reference)
    if "@" in reference:  # the URI of an alias, which may move
        return f"models:/{reference}"
    return f"models:/{name}/{registry.version(client, name, number).version}"


def _named(client: Any, reference: str) -> tuple[str, str | None]:
    """Model and number of ``NAME@alias``, ``NAME/version`` or ``NAME``, which has no number. Raises UserError."""
    name, at, alias = reference.partition("@")
    name, _, number = (name, "", "") if at else reference.partition("/")
    if not name:  # a path, for example
        allowed = "MODEL@ALIAS, MODEL/VERSION or MODEL"
        raise UserError("No registered model has this name", got=repr(reference), allowed=allowed)
    if not at:
        return name, number or None
    registry.versions(client, name)
    current = registry.alias_version(client, name, alias)
    if current is None:
        raise registry.unknown_alias(client, name, alias)
    return name, current


def _workload(client: Any, source: str | None) -> dict[str, str]:
    """The tag of the workload from the name of a logged model of this program, ``WORKLOAD-KIND``; else nothing."""
    scheme, _, model_id = str(source).partition(":/")
    if scheme != "models":
        return {}
    model = client.get_logged_model(model_id)
    return {"orchestrator.workload": model.name.partition("-")[0]} if logged_model.OUTCOME_TAG in model.tags else {}


def download(settings: Settings, version: Version, target: Path, names: Collection[str] | None = None) -> None:
    """Download the exported files of a version to ``target``, the configuration last; by default all data files.

    Those of ``names`` that the version does not have are left out. Raises UserError.
    """
    import mlflow

    uri = f"models:/{version.name}/{_FILES}"
    try:
        with tracking_uri_set(settings.tracking):
            present = {Path(one.path).name for one in mlflow.artifacts.list_artifacts(artifact_uri=uri)}
            wanted = [name for name in names or servable.DATA_FILES if name in present]
            for name in sorted(wanted, key=lambda name: name == servable.CONFIG):
                arrived = mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/{name}", dst_path=str(target))
                Path(arrived).replace(target / name)  # it comes in folders of its own
    except registry.outage_errors() as error:
        raise unavailable(version.name, error) from None
    if not (target / servable.CONFIG).exists():
        raise UserError(f"The model {version.name} was not made by a run of this program")


def record_file(settings: Settings, version: Version, name: str, target: Path) -> Path | None:
    """A file of the version's record; None if there is none. Raises UserError."""
    client = registry.client(settings)
    try:
        if registry.existing_run(client, version.run_id) is None:
            return None
        path = registry.record_paths(client, version.run_id, version.source, version.epochs).get(name)
        return Path(client.download_artifacts(version.run_id, path, str(target))) if path else None
    except registry.outage_errors() as error:
        raise unavailable(version.name, error) from None


def record_json(settings: Settings, version: Version, name: str, target: Path) -> dict[str, Any]:
    """As :func:`record_file`, read; empty if the run has none."""
    file = record_file(settings, version, name, target)
    return json.loads(file.read_text()) if file else {}


def unavailable(reference: str, error: Exception) -> UserError:
    """The error (exit 3) for a model whose registry or files are out of reach."""
    return UserError(f"The model {reference} cannot be fetched: {one_line(error)}", code=UNAVAILABLE)
