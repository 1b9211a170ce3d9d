"""The MLflow model, logged from code: this file is copied into every model and imports nothing of ours.

It loads plain files (JSON and safetensors) and hands them to the model's own ``predictor.py``.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from safetensors.numpy import load_file


def predictor(folder: Path) -> Any:
    """The ``Predictor`` that a run exported to ``folder``, with its weights."""
    spec = importlib.util.spec_from_file_location("predictor", folder / "predictor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = json.loads((folder / "config.json").read_text())
    return module.Predictor(load_file(folder / "weights.safetensors"), config)


class Model(PythonModel):  # type: ignore[misc]
    """Loads ``files`` (the folder a run exported) and predicts."""

    def load_context(self, context: PythonModelContext) -> None:
        self._predictor = predictor(Path(context.artifacts["files"]))

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        output: pd.DataFrame = self._predictor.predict(model_input, **(params or {}))
        return output


mlflow.models.set_model(Model())
