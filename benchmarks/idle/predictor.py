"""Predictor of a workload without training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


class Predictor:
    """Returns the same number for every row."""

    def __init__(self, weights: dict[str, np.ndarray[Any, Any]], config: dict[str, Any]) -> None:
        self.x = float(weights["x"])

    def predict(self, inputs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"x": np.full(len(inputs), self.x)})
