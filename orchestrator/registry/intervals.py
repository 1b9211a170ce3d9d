"""Intervals of means over test units: users, queries or pairs."""

from __future__ import annotations

import math
from pathlib import Path

Z95 = 1.96
"""Two-sided 95% quantile of the normal distribution."""


def half_width(units: Path, metric: str, value: float) -> float | None:
    """Half the width of the 95% interval of a mean over test units; None for a metric that is not such a mean."""
    import pandas as pd
    import pyarrow.parquet as pq

    if not units.exists() or metric not in pq.read_schema(units).names:
        return None
    column = pq.read_table(units, columns=[metric])[metric].to_numpy()
    column = column[~pd.isna(column)].astype(float)
    if len(column) < 2 or not math.isclose(column.mean(), value, rel_tol=1e-4, abs_tol=1e-9):
        return None
    return Z95 * float(column.std(ddof=1)) / math.sqrt(len(column))
