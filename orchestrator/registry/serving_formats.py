"""Requests and answers of a served model, in the form of MLflow's own server; rows that do not depend on each other."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from orchestrator.errors import one_line

FORMS = ("dataframe_split", "dataframe_records", "inputs")


class BadRequest(Exception):
    """The input of a request is not one, or the model refuses it."""


def frame_of(body: bytes, content_type: str) -> tuple[pd.DataFrame, Mapping[str, Any]]:
    """The rows and the parameters of a request: JSON with one of :data:`FORMS` and ``params``, or CSV.

    Raises :class:`BadRequest`.
    """
    try:
        if content_type.startswith("text/csv"):
            return pd.read_csv(io.BytesIO(body)), {}
        request = json.loads(body)
        given = [form for form in FORMS if form in request]
        if len(given) != 1:
            raise BadRequest(f"the request has {' and '.join(given) or 'no rows'}; allowed: one of {', '.join(FORMS)}")
        rows = request[given[0]]
        frame = pd.DataFrame(**rows) if given[0] == "dataframe_split" else pd.DataFrame(rows)
        return frame, dict(request.get("params") or {})
    except BadRequest:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise BadRequest(f"the request cannot be read: {one_line(error)}") from None


def as_json(predictions: Any) -> str:
    """``{"predictions": ...}``: a table as its rows. Raises :class:`BadRequest` where there are none."""
    if isinstance(predictions, BadRequest):
        raise predictions
    if isinstance(predictions, pd.DataFrame):
        rows = predictions.to_json(orient="records", double_precision=15, date_format="iso")
        return f'{{"predictions": {rows}}}'
    return json.dumps({"predictions": list(predictions)})


def row_wise(predict: Callable[[pd.DataFrame], Any], example: pd.DataFrame) -> bool:
    """Whether a model gives each row of its example, twice in a table, what it gives the row alone."""
    twice = pd.concat([example, example], ignore_index=True)
    together = predict(twice)
    alone = [predict(example.iloc[[row]].reset_index(drop=True)) for row in range(len(example))]
    if not isinstance(together, pd.DataFrame) or len(together) != len(twice) or any(len(one) != 1 for one in alone):
        return False
    apart = pd.concat([*alone, *alone], ignore_index=True)
    try:
        pd.testing.assert_frame_equal(together, apart, check_dtype=False, rtol=1e-4, atol=1e-5)
    except AssertionError:
        return False
    return True
