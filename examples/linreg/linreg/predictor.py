"""The served model: one file that stands alone and imports neither ``orchestrator`` nor ``workloads``."""

from typing import Any

import numpy as np
import pandas as pd


class Predictor:
    def __init__(self, weights: dict[str, np.ndarray], config: dict[str, Any]) -> None:
        self._slopes = weights["weight"][0]
        self._bias = weights["bias"][0]
        self._columns = config["columns"]

    def predict(self, inputs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"y": inputs[self._columns].to_numpy() @ self._slopes + self._bias})
