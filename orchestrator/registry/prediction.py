"""Batch prediction with a registered model, from file to file."""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import RunFailed, UserError, one_line, unknown
from orchestrator.registry import abstention, versions
from orchestrator.registry import models as registry
from orchestrator.registry.abstention import Summary
from orchestrator.registry.tables import (
    STREAM,
    WORDS,
    check_format,
    check_output,
    columns_of,
    empty,
    frames,
    output,
    typed,
)
from orchestrator.storage.settings import Settings
from workloads.abstention.decision import PARAMS

if TYPE_CHECKING:
    import pandas as pd

LIST = "query"
"""Input column of rankers: rows with one value form a list."""

HISTORY, USER = "history", "user"
"""Input columns of recommenders. The output's ``user`` of rows with a history alone is their number in the input."""

PARAMETER_TYPES = {"boolean": bool, "integer": int, "long": int, "float": float, "double": float, "string": str}


def predict(settings: Settings, model: str, source: str, target: str | None, params: Mapping[str, Any]) -> None:
    """Predict for every row of ``source`` with a registered model and write the predictions to ``target``.

    ``source`` is a Parquet, CSV or JSON lines file, or ``-`` for standard input (CSV or JSON lines); ``target`` is
    such a file, or None for JSON lines on standard output. Rows are processed in batches, and a target file is written
    completely or not at all. ``params`` are the model's parameters, as text or values. If a model abstains, the end
    says how many queries were answered, what is promised, and whether they differ from the calibration queries. Raises
    UserError, or RunFailed when the model fails.
    """
    target = target or STREAM
    _check_files(source, target)
    loaded = load(settings, model)
    signature = loaded.metadata.signature
    given = check_params(model, signature and signature.params, params)
    columns = columns_of(signature and signature.inputs)
    name = "standard input" if source == STREAM else source
    rows = written = 0
    summary = Summary()
    with output(target) as write:
        for batch in _whole_lists(_typed(frames(source, name, columns), columns, name), columns):
            predictions = predict_batch(loaded, model, batch, given, rows)
            if HISTORY in batch.columns and USER not in batch.columns and USER in predictions.columns:
                predictions[USER] += rows  # the model numbers the rows of a batch
            summary.add(predictions)
            write(predictions)
            rows += len(batch)
            written += len(predictions)
        if not rows:
            write(empty(signature and signature.outputs))
    if target != STREAM:
        print(f"{rows} rows in, {written} rows out: {target}")
    for line in summary.lines():
        print(line, file=sys.stderr if target == STREAM else sys.stdout)


def _typed(batches: Iterator[pd.DataFrame], columns: Sequence[Any] | None, name: str) -> Iterator[pd.DataFrame]:
    """The batches that are not empty, in the types of the signature."""
    rows = 0
    for frame in batches:
        batch = frame if columns is None else typed(frame, columns, name, rows)
        rows += len(batch)
        if not batch.empty:
            yield batch


def _whole_lists(batches: Iterator[pd.DataFrame], columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    """The batches, cut so that the rows of one query, which form a list, are in one batch.

    Raises UserError for a query that comes again after its batch: its rows would be ranked apart.
    """
    needed = {column.name for column in columns or () if column.required}
    if LIST not in needed or len(needed) < 2:
        yield from batches
        return
    import numpy as np
    import pandas as pd

    ended: set[Any] = set()  # queries of the batches before
    kept: pd.DataFrame | None = None
    for batch in batches:
        if again := ended & set(batch[LIST]):
            raise UserError(
                "The rows of a query are ranked together, but those of one are far apart in the input",
                got=reprlib.repr(again.pop()), fix=f"Sort the input by {LIST}",
            )  # fmt: skip
        joined = batch if kept is None else pd.concat([kept, batch], ignore_index=True)
        codes, queries = pd.factorize(joined[LIST], use_na_sentinel=False)
        ends = np.zeros(len(queries), np.int64)
        ends[codes] = np.arange(len(joined))  # each query's last row
        open_until = np.maximum.accumulate(ends[codes])
        whole = np.flatnonzero(open_until[:-1] == np.arange(len(joined) - 1))  # rows after which no query goes on
        last = int(whole[-1]) + 1 if len(whole) else 0
        kept = joined.iloc[last:].reset_index(drop=True)
        ended.update(joined[LIST][:last])
        if last:
            yield joined.iloc[:last]
    if kept is not None:
        yield kept


def _check_files(source: str, target: str) -> None:
    check_format("input", source)
    if source != STREAM and not Path(source).is_file():
        raise UserError(f"The input {source} does not exist", fix="Check the path")
    check_output(target, source)


def load(settings: Settings, model: str) -> Any:
    """Load the model ``NAME@alias`` or ``NAME/version``. Raises UserError, with exit 3 where a server is away."""
    registry.client(settings)  # raises UserError when tracking is off
    try:
        uri = versions.resolve(settings, model)
    except registry.outage_errors() as error:
        raise versions.unavailable(model, error) from None
    try:
        return registry.load(settings, uri)
    except Exception as error:  # a model's code and packages can raise anything
        if registry.is_outage(error):
            raise versions.unavailable(model, error) from None
        raise UserError(
            f"The model {model} cannot be loaded", got=f"{type(error).__name__}: {one_line(error)}",
            fix="Check that its files exist, and install what its requirements.txt lists",
        ) from None  # fmt: skip


def check_params(model: str, spec: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``key=value`` settings to the types of the model's signature. Raises UserError."""
    from pydantic import TypeAdapter, ValidationError

    declared = {param.name: param for param in spec or ()}
    given = {}
    for name, value in params.items():
        if name not in declared:
            abstention.refuse(model, name, value)
        if not declared:
            raise UserError(f"{model} takes no parameters", got=f"{name}={value}", fix="Leave it out")
        if name not in declared:
            raise unknown(f"parameter of {model}", name, declared)
        kind = declared[name].dtype.name
        many = bool(declared[name].shape)
        target: Any = PARAMETER_TYPES.get(kind, Any)
        try:
            given[name] = TypeAdapter(list[target] if many else target).validate_python(value)
        except ValidationError:
            word = WORDS.get(kind, kind)
            allowed = f"a list, each {word}" if many else word
            raise UserError(f"Parameter {name} of {model} is not valid", got=repr(value), allowed=allowed) from None
    return given


def reason(error: Exception, before: int = 0) -> str:
    """Why a model refuses its input. MLflow's message begins with all rows.

    Errors of models count the rows of the batch from 0. The reason counts those of the input, which begins with
    ``before`` other rows, from 1.
    """
    text = " ".join(str(error).split()).rpartition("Error: ")[2]
    return re.sub(r"\brow (\d+) of the input", lambda row: f"row {before + 1 + int(row[1])} of the input", text)


def predict_batch(loaded: Any, model: str, batch: pd.DataFrame, params: dict[str, Any], before: int) -> pd.DataFrame:
    """Predict a batch that follows ``before`` rows of the input."""
    import pandas as pd
    from mlflow.exceptions import MlflowException

    try:
        predictions = loaded.predict(batch, params=params or None)
    except (ValueError, MlflowException) as error:
        text = reason(error, before)
        what = "this promise" if text.startswith(tuple(f"{name}=" for name in PARAMS)) else "rows"
        rows = f" {before + 1} to {before + len(batch)}" if what == "rows" else ""
        raise UserError(f"{model} refuses {what}{rows}: {text}") from None
    except Exception as error:
        raise RunFailed(f"Prediction with {model}", f"{type(error).__name__}: {one_line(error)}") from error
    return predictions if isinstance(predictions, pd.DataFrame) else pd.DataFrame({"prediction": list(predictions)})
