from typing import Any

import numpy as np
import pandas as pd


class Predictor:
    def __init__(self, weights: dict[str, np.ndarray], config: dict[str, Any]) -> None:
        self._x = float(weights["x"])

    def predict(self, inputs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"user": inputs["user"], "x": np.full(len(inputs), self._x)})
