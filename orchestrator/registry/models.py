"""MLflow's model registry: log a run's model; find and load versions and aliases."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import objectives
from orchestrator.config.plan import Plan
from orchestrator.errors import UserError, unknown
from orchestrator.provenance import record as provenance
from orchestrator.registry import logged_model, servable
from orchestrator.storage.names import OUTCOME, OUTCOMES, SEALED, TABLES, TEST_UNITS, VALIDATION_UNITS
from orchestrator.storage.settings import Settings
from orchestrator.tracking import artifact_stores, store
from orchestrator.tracking.client import all_pages
from orchestrator.tracking.mlflow_globals import tracking_uri_set

if TYPE_CHECKING:
    pass

OUTCOME_FILES = (provenance.SPEC, OUTCOME, VALIDATION_UNITS, TEST_UNITS)
RECORD_FILES = (*OUTCOME_FILES, provenance.ENVIRONMENT)

EPOCH_TAG = "orchestrator.epoch"
"""Tag of a version: the number of epochs it was trained for."""

VALIDATION_SEEN = "orchestrator.validation_seen"
"""Tag of a run whose weights, before it began, had learned from its validation part, or may have by another split."""

PARENT_TAG = "orchestrator.parent"
"""Tag of a version: the version of the same run from which training continued."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A logged model: its URI, and its version if it was registered."""

    uri: str
    version: str | None


def client(settings: Settings) -> Any:
    """An MlflowClient on the settings' store. Raises UserError when tracking is off."""
    if settings.tracking is None:
        raise UserError("There is no model registry with tracking off", fix="Leave out --tracking, or name a server")
    store.ensure(settings.tracking, settings.home)
    from mlflow.tracking import MlflowClient

    return MlflowClient(settings.tracking, settings.tracking)


def log_model(settings: Settings, run_id: str, folder: Path, register: str | None) -> Logged:
    """Log the record files and the model below ``folder`` to the run; register the model if ``register`` is a name.

    The model is logged from code, with signature, input example and exact requirements; its weights are safetensors.
    Models that the run kept at earlier epochs (:data:`SEALED`) become the preceding versions. Safe to call again after
    an interruption: finished steps are skipped.
    """
    mlflow_client = client(settings)
    with tracking_uri_set(settings.tracking):
        for name in RECORD_FILES:
            if (folder / name).exists():
                mlflow_client.log_artifact(run_id, str(folder / name))
        if (folder / TABLES).is_dir():
            mlflow_client.log_artifacts(run_id, str(folder / TABLES), TABLES)
        parent = None
        for sealed in _sealed(folder) if register else ():
            parent = _version(settings, run_id, sealed, register, parent).version
        return _version(settings, run_id, folder, register, parent)


def _sealed(folder: Path) -> list[Path]:
    """Folders of the models kept at earlier epochs than the one in ``folder``, in order of epochs."""
    epochs = json.loads((folder / OUTCOME).read_text())["epochs"]
    return [file.parent for file in sorted(folder.glob(f"{SEALED}/*/{OUTCOME}")) if int(file.parent.name) < epochs]


def _version(settings: Settings, run_id: str, folder: Path, register: str | None, parent: str | None) -> Logged:
    """Log the model below ``folder`` and register it, each unless done before."""
    mlflow_client = client(settings)
    outcome = (folder / OUTCOME).read_bytes()
    mark = hashlib.sha256(outcome).hexdigest()
    spec = _spec(folder)
    model_id = logged_model.find(mlflow_client, run_id, mark) or logged_model.log(
        mlflow_client, run_id, folder, spec, mark
    )
    uri = f"models:/{model_id}"
    if register is None:
        return Logged(uri, None)
    for file in _outcome_files(folder):
        mlflow_client.log_artifact(run_id, str(file), _outcome_path(mark))
    about = json.loads(outcome)
    tags = servable.read(folder / "model")["tags"] | {EPOCH_TAG: str(about["epochs"])}
    if parent is not None:
        tags[PARENT_TAG] = parent
    measured = _measured(spec, about["metrics"])
    version = _register(mlflow_client, register, uri, run_id, model_id, tags, measured)
    logged_model.note_version(mlflow_client, model_id, register, version)
    return Logged(uri, version)


def _outcome_files(folder: Path) -> list[Path]:
    """The record files of an outcome. The spec of a model kept at an earlier epoch is that of its run."""
    files = [folder / name for name in OUTCOME_FILES if (folder / name).exists()]
    of_run = folder.parents[1] / provenance.SPEC
    return [of_run, *files] if folder.parent.name == SEALED and of_run.exists() else files


def _outcome_path(mark: str) -> str:
    return f"{OUTCOMES}/{mark[:16]}"


def record_paths(mlflow_client: Any, run_id: str, source: str | None, epochs: str | None) -> dict[str, str]:
    """Path of each record file of a version among its run's artifacts, by name. ``source`` is the version's.

    A later version of a run, as of a sweep that was resumed, replaces the files at the top: of a version without files
    of its own, as earlier versions of this program made them, these are left out if they are another version's.
    """
    listed = mlflow_client.list_artifacts(run_id)
    top = {name: name for name in OUTCOME_FILES if name in {one.path for one in listed}}
    spec = {name: name for name in top if name == provenance.SPEC}
    mark = _mark(mlflow_client, source)
    own = [*([_outcome_path(mark)] if mark else []), *([f"{SEALED}/{int(epochs):04d}"] if epochs else [])]
    for folder in own:
        parent = folder.partition("/")[0]
        siblings = mlflow_client.list_artifacts(run_id, parent) if parent in {one.path for one in listed} else ()
        if folder in {one.path for one in siblings}:
            return spec | {Path(one.path).name: one.path for one in mlflow_client.list_artifacts(run_id, folder)}
    if mark and OUTCOME in top:
        with tempfile.TemporaryDirectory() as scratch:
            content = Path(mlflow_client.download_artifacts(run_id, OUTCOME, scratch)).read_bytes()
        if hashlib.sha256(content).hexdigest() != mark:
            return spec
    return top


def _mark(mlflow_client: Any, source: str | None) -> str | None:
    """Digest of the outcome of the logged model ``models:/ID``; None for a model without one."""
    from mlflow.exceptions import MlflowException

    scheme, _, model_id = str(source).partition(":/")
    try:
        tags = mlflow_client.get_logged_model(model_id).tags if scheme == "models" else {}
    except MlflowException as error:
        if error.get_http_status_code() != 404:
            raise
        return None
    mark: str | None = tags.get(logged_model.OUTCOME_TAG)
    return mark


def _spec(folder: Path) -> dict[str, Any]:
    """The spec of the experiment whose outcome is in ``folder``; for a model kept at an earlier epoch, of its run."""
    files = (folder / provenance.SPEC, folder.parents[1] / provenance.SPEC)
    return next((json.loads(file.read_text()) for file in files if file.exists()), {})


def _measured(spec: dict[str, Any], metrics: dict[str, float]) -> str:
    """The test values of the objectives, or nothing for a model that was not tested."""
    heads = objectives.of_plan(spec["workload"], Plan(**spec["plan"])) if spec else ()
    values = {head.metric: metrics.get(f"test/{head.metric}") for head in heads}
    text = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
    return f"Test: {text}. " if text else ""


def _register(
    mlflow_client: Any, name: str, uri: str, run_id: str, model_id: str, tags: dict[str, str], measured: str
) -> str:
    """Register the model under ``name`` unless it is; return its version. Its description begins with ``measured``."""
    from mlflow.exceptions import MlflowException

    check_name(name)
    run = mlflow_client.get_run(run_id)
    if not any(model.name == name for model in mlflow_client.search_registered_models(f"name = '{name}'")):
        try:
            mlflow_client.create_registered_model(name, description=_description(name, run.data.tags))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another driver was first
                raise
    for existing in mlflow_client.search_model_versions(f"name = '{name}'"):
        if existing.source == uri:
            return str(existing.version)
    command = run.data.tags.get("orchestrator.command")
    about = f"{measured}From {run.info.run_name}: {command}"  # MLflow's table shows it
    created = mlflow_client.create_model_version(name, uri, run_id, tags=tags, model_id=model_id, description=about)
    return str(created.version)


def _description(name: str, tags: Mapping[str, str]) -> str:
    """The Markdown text on a registered model's page."""
    workload = tags.get("orchestrator.workload")
    models = f"Models of the workload {workload}." if workload else "Models trained by the orchestrator."
    return f"{models}\n\nMove an alias behind its gates: `orchestrator promote {shlex.quote(name)} --to champion`"


def refused(error: Exception) -> bool:
    """Whether the store rejected the request, so that a retry would not help."""
    from mlflow.exceptions import MlflowException

    return isinstance(error, MlflowException) and 400 <= error.get_http_status_code() < 500


def outage_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a store or server that is out of reach."""
    from mlflow.exceptions import MlflowException

    return (MlflowException, OSError, *artifact_stores.errors())


_NO_ANSWER = r"API request (?:to \S+ )?failed|5\d\d Server Error|Max retries exceeded|Connection(?: refused|Error)"


def is_outage(error: Exception) -> bool:
    """Whether a model could not be loaded because a server was out of reach, and not for a file or its code."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):  # its code is that of an internal error, for a model's code too
        return not refused(error) and re.search(_NO_ANSWER, str(error)) is not None
    return (artifact_stores.status(error) or 0) >= 500


def existing_run(mlflow_client: Any, run_id: str | None) -> Any | None:
    """A run; None if it was erased, as by MLflow's garbage collection, or there is no id. An outage is raised."""
    from mlflow.exceptions import MlflowException

    try:
        return mlflow_client.get_run(run_id) if run_id else None
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def check_name(name: str) -> None:
    """Raise UserError for a name that MLflow or the forms NAME@ALIAS and NAME/VERSION do not allow."""
    if not re.fullmatch(r"(?![. ]+$)[^/\\:@'\"`\x00-\x1f\x7f]{1,250}", name) or name != name.strip():
        raise UserError(
            "A model cannot be registered under this name", got=repr(name),
            allowed="up to 250 characters without / \\ : @ and quotes", fix="Try letters, digits, . _ and -",
        )  # fmt: skip


def check_alias(alias: str) -> None:
    """Raise UserError for an alias that MLflow reserves or does not allow."""
    if alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        raise UserError(f"The alias {alias} is reserved by MLflow", fix="Choose another, such as champion")
    if not re.fullmatch(r"[\w-]{1,255}", alias):
        raise UserError(
            "The alias is not valid", got=repr(alias), allowed="letters, digits, _ and -", fix="Try champion"
        )


def versions(registry: Any, model: str) -> list[Any]:
    """All versions of a registered model. Raises UserError for an unknown model and one without versions."""
    all_versions = list(registry.search_model_versions(f"name = '{model}'")) if "'" not in model else []
    if not all_versions:
        names = [one.name for one in all_pages(registry.search_registered_models)]
        register = f"Register one: orchestrator run ... --register {model}"
        if (name := re.split("[@/]", model)[0]) != model:  # an alias or a version in place of a name
            register = f"Write the name, {name}; promote takes a version with --version"
        if model in names:
            raise UserError(f"{model} has no version", fix=register)
        if not names:
            raise UserError("There is no registered model yet", got=repr(model), fix=register)
        error = unknown("registered model", model, names)
        if error.fix and name == model:
            raise error
        raise UserError(error.what, got=error.got, allowed=error.allowed, fix=register)
    return all_versions


def version(registry: Any, model: str, number: str | None) -> Any:
    """Version ``number`` of a registered model, by default the newest. Raises UserError."""
    by_number = {str(one.version): one for one in versions(registry, model)}
    chosen = number or max(by_number, key=int)
    if chosen not in by_number:
        raise unknown(f"version of {model}", chosen, by_number)
    return by_number[chosen]


def alias_version(registry: Any, model: str, alias: str) -> str | None:
    """The version that an alias points at; None if the alias does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return str(registry.get_model_version_by_alias(model, alias).version)
    except MlflowException as error:
        if error.get_http_status_code() in (400, 404):
            return None
        raise  # an outage does not mean that the alias does not exist


def unknown_alias(registry: Any, model: str, alias: str) -> UserError:
    """The error for an alias that a model does not have, with the aliases it has."""
    aliases = (registry.get_model_version(model, one.version).aliases for one in versions(registry, model))
    return unknown(f"alias of {model}", alias, {name for names in aliases for name in names})


def load(settings: Settings, uri: str) -> Any:
    """Load the MLflow model at a ``models:/`` URI. A server's files are removed with the model."""
    import mlflow

    with tracking_uri_set(settings.tracking):
        if not (settings.tracking or "").startswith("http"):  # loaded from where they are
            return mlflow.pyfunc.load_model(uri)
        folder = tempfile.TemporaryDirectory(prefix="orchestrator-model-", ignore_cleanup_errors=True)
        model = mlflow.pyfunc.load_model(uri, dst_path=folder.name)
    weakref.finalize(model, folder.cleanup)
    return model
