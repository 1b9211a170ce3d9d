"""The MLflow model, logged from code. This file is copied into every model and imports no code of this project.

It loads plain files (JSON and safetensors) and hands them to the model's own ``predictor.py``.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from safetensors.numpy import load_file


def predictor(folder: Path) -> Any:
    """The ``Predictor`` that a run exported to ``folder``, with its weights.

    Its module is ``PACKAGE.workload.predictor``, in a package of its own for each model. Both packages have the path
    ``folder``, so that the predictor's relative imports find the files that were exported with it.
    """
    package = f"served_{uuid4().hex}"
    for name in (package, f"{package}.workload"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    importlib.invalidate_caches()
    module = importlib.import_module(f"{package}.workload.predictor")
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
