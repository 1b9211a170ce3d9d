"""MLflow's model registry: logging a run's model, versions, aliases, promotion."""

from __future__ import annotations

import getpass
import json
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from orchestrator import store
from orchestrator.errors import REFUSED, USAGE, UserError, unknown
from orchestrator.settings import Settings

RECORD_FILES = ("spec.json", "environment.json", "outcome.json", "test_units.parquet")


@dataclass(frozen=True, slots=True)
class Logged:
    """A logged model: its URI, and its version where it was registered."""

    uri: str
    version: str | None


def client(settings: Settings) -> Any:
    """An MlflowClient on the settings' store. Raises UserError when tracking is off."""
    if settings.tracking is None:
        raise UserError("There is no model registry with tracking off", fix="Leave --tracking away, or name a server")
    store.ensure(settings.tracking)
    from mlflow.tracking import MlflowClient

    return MlflowClient(settings.tracking, settings.tracking)


def log_model(settings: Settings, run_id: str, folder: Path, register: str | None) -> Logged:
    """Log the record files and the model below ``folder`` to the run; register the model under a name.

    The model is logged from code with signature, input example and exact requirements; its weights are
    safetensors.
    """
    mlflow_client = client(settings)
    for name in RECORD_FILES:
        if (folder / name).exists():
            mlflow_client.log_artifact(run_id, str(folder / name))
    if (folder / "tables").is_dir():
        mlflow_client.log_artifacts(run_id, str(folder / "tables"), "tables")

    import mlflow
    import pandas as pd
    from mlflow.models import infer_signature

    mlflow.set_tracking_uri(settings.tracking)
    mlflow.set_registry_uri(settings.tracking)
    files = folder / "model"
    meta = json.loads((files / "servable.json").read_text())
    example = pd.DataFrame(meta["example"])
    output = _predict(files, example, meta["params"])
    with warnings.catch_warnings(), mlflow.start_run(run_id=run_id, log_system_metrics=False):
        warnings.simplefilter("ignore")  # of integer columns: our ids are never missing
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("serving.py")),
            artifacts={"files": str(files)},
            signature=infer_signature(example, output, params=meta["params"]),
            input_example=(example, meta["params"]),
            pip_requirements=[
                f"{name}=={installed(name)}" for name in ("mlflow", "safetensors", *meta["requirements"])
            ],
        )
    if register is None:
        return Logged(info.model_uri, None)
    if not any(known.name == register for known in mlflow_client.search_registered_models(f"name = '{register}'")):
        mlflow_client.create_registered_model(register)
    version = mlflow_client.create_model_version(register, info.model_uri, run_id, model_id=info.model_id)
    return Logged(info.model_uri, str(version.version))


def trouble() -> tuple[type[Exception], ...]:
    """What a store or server that is away raises."""
    from mlflow.exceptions import MlflowException

    return (MlflowException, OSError)


def promote(settings: Settings, model: str, to: str, version: str | None = None) -> dict[str, Any]:
    """Point the alias ``to`` at a version (the newest, unless one is named). Who, when, before stand on the version."""
    if to == "latest" or (to.startswith("v") and to[1:].isdigit()):
        raise UserError(f"The alias {to} is reserved by MLflow", fix="Choose another, such as champion")
    registry = client(settings)
    chosen = version or str(max(int(v.version) for v in versions(registry, model)))
    target = next((v for v in versions(registry, model) if str(v.version) == chosen), None)
    if target is None:
        raise unknown(f"version of {model}", chosen, [str(v.version) for v in versions(registry, model)])
    _check_loads(registry, model, chosen)
    before = _alias(registry, model, to)
    registry.set_registered_model_alias(model, to, chosen)
    if _alias(registry, model, to) != chosen:
        raise UserError(
            f"Somebody else moved {model}@{to} at the same moment",
            fix="Look, and promote again",
            code=REFUSED,
        )
    event = {
        "promoted_to": to,
        "promoted_by": getpass.getuser(),
        "promoted_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "promoted_before": before or "none",
    }
    for key, value in event.items():
        registry.set_model_version_tag(model, chosen, f"orchestrator.{key}", value)
    return {"model": model, "alias": to, "version": chosen, "before": before}


def versions(registry: Any, model: str) -> list[Any]:
    """All versions of a registered model. Raises UserError for an unknown one."""
    found = list(registry.search_model_versions(f"name = '{model}'")) if "'" not in model else []
    if not found:
        raise unknown("registered model", model, [m.name for m in registry.search_registered_models()])
    return found


def resolve(settings: Settings, reference: str) -> str:
    """``NAME@alias``, ``NAME/version`` or any ``models:/`` URI -> a URI that loads. Raises UserError."""
    if reference.startswith(("models:/", "runs:/")):
        return reference
    registry = client(settings)
    name, at, alias = reference.partition("@")
    if at:
        known = versions(registry, name)
        if _alias(registry, name, alias) is None:
            aliases = sorted({a for v in known for a in registry.get_model_version(name, v.version).aliases})
            raise unknown(f"alias of {name}", alias, aliases)
        return f"models:/{name}@{alias}"
    name, slash, version = reference.partition("/")
    known = versions(registry, name)
    if not slash:
        return f"models:/{name}/{max(int(v.version) for v in known)}"
    if version not in {str(v.version) for v in known}:
        raise unknown(f"version of {name}", version, [str(v.version) for v in known])
    return f"models:/{name}/{version}"


def _alias(registry: Any, model: str, alias: str) -> str | None:
    from mlflow.exceptions import MlflowException

    try:
        return str(registry.get_model_version_by_alias(model, alias).version)
    except MlflowException:
        return None


def _check_loads(registry: Any, model: str, version: str) -> None:
    import mlflow

    try:
        mlflow.set_tracking_uri(registry.tracking_uri)
        loaded = mlflow.pyfunc.load_model(f"models:/{model}/{version}")
        loaded.predict(loaded.input_example)
    except Exception as error:
        raise UserError(
            f"{model} version {version} does not load and predict: {type(error).__name__}: {error}",
            fix="Register a version whose files are there", code=USAGE,
        ) from None  # fmt: skip


def _predict(files: Path, example: Any, params: dict[str, Any]) -> Any:
    """The exported model's own answer, for the signature."""
    import importlib.util

    from safetensors.numpy import load_file

    spec = importlib.util.spec_from_file_location("predictor", files / "predictor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = json.loads((files / "config.json").read_text())
    return module.Predictor(load_file(files / "weights.safetensors"), config).predict(example, **params)
