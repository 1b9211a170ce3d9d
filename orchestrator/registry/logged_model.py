"""The logged model of a run: what MLflow keeps of it, registered or not."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import user_code
from orchestrator.errors import one_line
from orchestrator.provenance.package import pin
from orchestrator.registry import model_metrics, servable
from orchestrator.tracking.names import fitting_param

if TYPE_CHECKING:
    import pandas as pd

OUTCOME_TAG = "orchestrator.outcome"
"""Tag of a logged model: digest of its outcome. A sweep that is resumed may have another winner."""

VERSIONS_TAG = "mlflow.modelVersions"
"""MLflow's tag of a logged model with its registered versions, which the model's page shows."""

KIND_PARAMS = ("backbone", "encoder", "architecture", "model")
"""Parameters of workloads that name the kind of model."""


class Unservable(Exception):
    """The predictor fails on the model's input example."""


def find(mlflow_client: Any, run_id: str, outcome: str) -> str | None:
    """The id of the run's complete model with this digest of its outcome, or None."""
    outputs = mlflow_client.get_run(run_id).outputs
    for output in outputs.model_outputs if outputs else ():
        model = mlflow_client.get_logged_model(output.model_id)
        if model.tags.get(OUTCOME_TAG) == outcome and model.status == "READY":
            return str(model.model_id)
    return None


def log(mlflow_client: Any, run_id: str, folder: Path, spec: Mapping[str, Any], outcome: str) -> str:
    """Log the model below ``folder`` with its parameters and test metrics; return its id.

    The run is named in each call, and not made MLflow's active run: it may have ended, and in a notebook the user may
    have an active run, or have set an experiment. Raises Unservable.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import Model

    from orchestrator.registry.serving import predictor

    files = folder / "model"
    meta = servable.read(files)
    example = pd.DataFrame(meta["example"])
    try:
        output = predictor(files).predict(example, **meta["params"])
        requirements = [pin(name, installed(name)) for name in ("mlflow", "safetensors", *meta["requirements"])]
    except Exception as error:
        raise Unservable(f"{type(error).__name__}: {one_line(error)}") from error
    run = mlflow_client.get_run(run_id)
    params = {name: fitting_param(str(value)) for name, value in spec.get("params", {}).items()}
    model = mlflow.initialize_logged_model(
        name=_name(spec),
        source_run_id=run_id,
        experiment_id=run.info.experiment_id,
        params=params | run.data.params,
        tags={OUTCOME_TAG: outcome},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing values in integer columns: ids are never missing
        Model.log(
            None,
            mlflow.pyfunc,
            run_id=run_id,
            model_id=model.model_id,
            python_model=str(Path(__file__).with_name("serving.py")),
            artifacts={"files": str(files)},
            signature=_signature(example, meta, output),
            input_example=(example, meta["params"]) if meta["params"] else example,  # MLflow drops an empty pair
            pip_requirements=requirements,
        )
    model_metrics.link(mlflow_client, run_id, model.model_id, folder)
    return str(model.model_id)


def note_version(mlflow_client: Any, model_id: str, name: str, version: str) -> None:
    """Note a registered version on its model, unless it is. An MLflow server does this itself, a database does not."""
    noted = json.loads(mlflow_client.get_logged_model(model_id).tags.get(VERSIONS_TAG, "[]"))
    if not any((one["name"], str(one["version"])) == (name, version) for one in noted):
        versions = [*noted, {"name": name, "version": version}]
        mlflow_client.set_logged_model_tags(model_id, {VERSIONS_TAG: json.dumps(versions)})


def _signature(example: pd.DataFrame, meta: Mapping[str, Any], output: pd.DataFrame) -> Any:
    """The model's signature; ``meta`` as :func:`servable.read`. Where a column has alternatives, none is required."""
    from mlflow.models import infer_signature
    from mlflow.types import ColSpec, Schema

    alternatives, optional = meta["alternatives"], meta["optional"]
    signature = infer_signature(example.assign(**alternatives, **optional), output, params=meta["params"])
    if alternatives or optional:
        needed = {column.name for column in signature.inputs if column.required} - optional.keys()
        signature.inputs = Schema(
            [
                ColSpec(column.type, column.name, required=column.name in needed and not alternatives)
                for column in signature.inputs
            ]
        )
    return signature


def _name(spec: Mapping[str, Any]) -> str:
    """``recommender-mf``: the workload and its kind of model. MLflow's list of models shows it."""
    params = spec.get("params", {})
    parts = [user_code.label(spec.get("workload", "model")), *(params[name] for name in KIND_PARAMS if name in params)]
    return re.sub(r"[^\w-]+", "-", "-".join(map(str, parts[:2])))
