"""Requests and answers of a served model, in the form of MLflow's own server; rows that do not depend on each other."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from orchestrator.errors import one_line
from orchestrator.registry.tables import csv

Batching: TypeAlias = Literal["rows", "lists", "none"]
"""What a model answers a row with: a row, or a list of rows, that do not depend on other rows; or neither."""

FORMS = ("dataframe_split", "dataframe_records", "inputs")


class BadRequest(Exception):
    """The input of a request is not one, or the model refuses it."""


def frame_of(
    body: bytes, content_type: str, columns: Sequence[Any] | None = None
) -> tuple[pd.DataFrame, Mapping[str, Any]]:
    """The rows and the parameters of a request: JSON with one of :data:`FORMS` and ``params``, or CSV.

    Texts of CSV are those of ``columns``, the model's. Raises :class:`BadRequest`.
    """
    try:
        if content_type.startswith("text/csv"):
            return pd.concat(csv(io.BytesIO(body), columns), ignore_index=True), {}
        request = json.loads(body)
        given = [form for form in FORMS if form in request]
        if len(given) != 1:
            raise BadRequest(f"the request has {' and '.join(given) or 'no rows'}; allowed: one of {', '.join(FORMS)}")
        rows = request[given[0]]
        frame = pd.DataFrame(**rows) if given[0] == "dataframe_split" else pd.DataFrame(rows)
        return frame, dict(request.get("params") or {})
    except BadRequest:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"the request cannot be read: {one_line(error)}") from None


def as_json(predictions: Any) -> str:
    """``{"predictions": ...}``: a table as its rows. Raises :class:`BadRequest` where there are none."""
    if isinstance(predictions, BadRequest):
        raise predictions
    if isinstance(predictions, pd.DataFrame):
        rows = predictions.to_json(orient="records", double_precision=15, date_format="iso")
        return f'{{"predictions": {rows}}}'
    return json.dumps({"predictions": predictions}, default=_plain)


def _plain(value: Any) -> Any:
    """An array, a number of NumPy or another sequence for JSON."""
    return value.tolist() if hasattr(value, "tolist") else list(value)


def batching(predict: Callable[[pd.DataFrame], Any], example: pd.DataFrame) -> Batching:
    """How rows of several requests can be predicted in one call, by the rows of the example.

    They can where each row of the example, twice in a table, is answered with what the row alone is.
    """
    alone = [predict(example.iloc[[row]].reset_index(drop=True)) for row in range(len(example))]
    together = predict(pd.concat([example, example], ignore_index=True))
    if not all(isinstance(one, pd.DataFrame) for one in [*alone, together]):
        return "none"
    apart = pd.concat(alone, ignore_index=True)
    try:
        twice = pd.concat([apart, apart], ignore_index=True)
        pd.testing.assert_frame_equal(together, twice, check_dtype=False, rtol=1e-4, atol=1e-5)
    except AssertionError:
        return "none"
    lengths = [len(one) for one in alone]
    if max(lengths) == 1 == min(lengths):
        return "rows"
    return "lists" if answer_lengths(example, apart) == lengths else "none"


def answer_lengths(inputs: pd.DataFrame, output: Any) -> list[int] | None:
    """The number of rows that each row of ``inputs`` is answered with; None where that is not known.

    The answer to a row repeats the row's values in the columns that both tables have. Neighbours must differ there.
    """
    shared = [column for column in inputs.columns if column in getattr(output, "columns", ())]
    if not shared or not len(output):
        return None
    keys = output[shared].to_numpy(dtype=object)
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    if len(starts) != len(inputs) or (keys[starts] != inputs[shared].to_numpy(dtype=object)).any():
        return None
    lengths: list[int] = np.diff([*starts, len(output)]).tolist()
    return lengths
