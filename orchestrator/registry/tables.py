"""Read and write rows for a model in batches, from Parquet, CSV and JSON lines, in the types of its signature."""

from __future__ import annotations

import base64
import codecs
import json
import os
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from orchestrator.errors import UNAVAILABLE, USAGE, RunFailed, UserError, nearest, one_line
from orchestrator.storage import disk

if TYPE_CHECKING:
    from io import BufferedReader

    import pandas as pd

BATCH_ROWS = 8192  # rows in memory and in one call of the model
FORMATS = (".parquet", ".csv", ".jsonl")
MOST_UNTYPED = 128
"""Batches that wait for the first value of a column of Parquet, which sets its type; then it has nothing but nulls."""

STREAM = "-"
WORDS = {
    "boolean": "true or false",
    **dict.fromkeys(("integer", "long"), "a whole number"),
    **dict.fromkeys(("float", "double"), "a number"),
    "string": "text",
    "binary": "bytes, or base64 text",
    "datetime": "a date, or a date and time, as 2024-05-01T12:00",
}
"""MLflow's types in words."""
INTEGERS, NUMBERS = ("integer", "long"), ("integer", "long", "float", "double")


def columns_of(spec: Any) -> list[Any] | None:
    """The named columns of a signature; None without any."""
    named = spec is not None and not spec.is_tensor_spec() and spec.has_input_names()
    return list(spec.inputs) if named else None


def frames(source: str, name: str, columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    """Iterate over a file or standard input, ``BATCH_ROWS`` rows at a time."""
    import pyarrow as pa

    try:
        if Path(source).suffix == ".parquet":
            yield from _parquet(source, name, columns)
            return
        with _standard_input() if source == STREAM else Path(source).open("rb") as stream:
            head, lines = _head(stream)
            if source.endswith(".jsonl") or (source == STREAM and head.startswith(b"{")):
                yield from _json_lines(stream, name, lines)
            elif head:
                yield from csv(stream, columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{name} cannot be read: {one_line(error)}") from None


def _standard_input() -> AbstractContextManager[BufferedReader]:
    """Standard input, which stays open. Raises UserError where the caller has closed it."""
    if sys.stdin is None:
        raise UserError("Standard input is closed", fix="Write the rows to it through a pipe, or name a file")
    return nullcontext(cast("BufferedReader", sys.stdin.buffer))


def _head(stream: BufferedReader) -> tuple[bytes, int]:
    """The start of the rows, which stays in the stream, empty at the end; and the number of blank lines read before."""
    lines = 0  # a pipe may have many, long before the rest
    while (head := stream.peek(1)) and not head.strip():
        lines += stream.read(len(head)).count(b"\n")
    return head.removeprefix(codecs.BOM_UTF8).lstrip(), lines


def _parquet(source: str, name: str, columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        wanted = None if columns is None else _present(columns, file.schema_arrow.names, name)
        for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
            yield batch.to_pandas()


def csv(stream: IO[bytes], columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    """Blanks around names and texts do not count: ids of a model have none."""
    import pandas as pd

    texts = [column.name for column in columns or () if _kind(column) in ("string", "binary")]
    types = {name: str for text in texts for name in (text, f" {text}")}  # 007 stays 007
    # Without index_col=False, the first fields of rows that are longer than the header are an index.
    rows = pd.read_csv(stream, index_col=False, chunksize=BATCH_ROWS, dtype=types, keep_default_na=False, na_values="")
    while (frame := _next_frame(rows)) is not None:
        frame.columns = frame.columns.str.strip()
        if frame.columns.has_duplicates:
            raise ValueError(f"several columns are named {frame.columns[frame.columns.duplicated()][0]}")
        yield frame.assign(**{name: frame[name].str.strip() for name in texts if name in frame})


def _next_frame(frames: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    """The next rows, None at the end. Raises ValueError for rows with more fields than the header has names."""
    from pandas.errors import ParserWarning

    with warnings.catch_warnings(action="error", category=ParserWarning):
        try:
            return next(frames, None)
        except ParserWarning:
            raise ValueError("its rows have more fields than its header has names") from None


def _json_lines(stream: IO[bytes], name: str, before: int) -> Iterator[pd.DataFrame]:
    import pandas as pd

    numbered = ((number, line) for number, line in enumerate(stream, before + 1) if line.strip())
    while chunk := list(islice(numbered, BATCH_ROWS)):
        rows = []
        for number, line in chunk:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                shown = line[:60].decode(errors="replace").strip()
                raise UserError(f"Line {number} of {name} is not a JSON object", got=shown)
            rows.append(row)
        yield pd.DataFrame(rows)


def _present(columns: Sequence[Any], names: Sequence[str], name: str) -> list[str]:
    """The model's columns among ``names``, those of the input. Raises UserError if a required one is missing."""
    for column in columns:
        if column.required and column.name not in names:
            close = nearest(column.name, names)
            raise UserError(
                f"{name} lacks the column {column.name}, which the model needs", got=", ".join(names) or "no columns",
                fix=f"Rename {close} to it?" if close else None,
            )  # fmt: skip
    present = [column.name for column in columns if column.name in names]
    if not present:
        allowed = ", ".join(column.name for column in columns)
        raise UserError(f"{name} has no column of the model", got=", ".join(names) or "no columns", allowed=allowed)
    return present


def typed(rows: pd.DataFrame, columns: Sequence[Any], name: str, before: int) -> pd.DataFrame:
    """Select the model's columns and convert them to its types.

    Raises UserError with column, row and value; ``before`` is the number of preceding rows of the input.
    """
    import numpy as np
    import pandas as pd
    from mlflow.types.schema import Array

    frame = rows[_present(columns, list(map(str, rows.columns)), name)].copy()
    for column in (column for column in columns if column.name in frame and len(frame)):
        values = frame[column.name]
        if isinstance(values.dtype, pd.CategoricalDtype):  # MLflow's check takes no categories
            values = frame[column.name] = values.astype(object)
        if isinstance(column.type, Array):
            frame[column.name] = _lists(values, column, name, before)
            continue
        kind, fix = _kind(column), None
        if kind in NUMBERS and values.dtype != bool:
            checked = pd.to_numeric(values, errors="coerce")
        elif kind == "datetime":
            checked = pd.to_datetime(values, errors="coerce", format="ISO8601")
        elif kind == "string":
            checked = values.where(values.map(lambda value: isinstance(value, str)))
        elif kind == "binary":
            checked = values.map(_bytes)
        else:
            continue  # left to MLflow's own check
        if kind in INTEGERS:
            limits = np.iinfo(column.type.to_numpy())
            bad = (checked % 1 != 0) | ~checked.between(limits.min, limits.max)  # includes empty and infinite values
            if checked.dtype.kind == "f" and not bad.any():
                bad, fix = checked.abs() >= 2**53, "A float is not exact there: write the column without decimal points"
        else:
            bad = checked.isna() & values.notna()
        if bad.any():
            row = int(bad.to_numpy().argmax())
            got = reprlib.repr(values.tolist()[row]) if values.notna().iloc[row] else "nothing"
            raise UserError(
                f"Column {column.name} of {name} is wrong in row {before + row + 1}", got=got, allowed=WORDS[kind],
                fix=fix,
            )  # fmt: skip
        frame[column.name] = checked.astype(column.type.to_pandas()) if kind in NUMBERS else checked
    return frame


def _lists(values: pd.Series[Any], column: Any, name: str, before: int) -> pd.Series[Any]:
    """The lists of a column. Raises UserError as :func:`typed`, also for elements that MLflow would refuse.

    MLflow's own error has neither the column nor the row.
    """
    import pandas as pd

    if (single := values.map(pd.api.types.is_scalar) & values.notna()).any():
        row = int(single.to_numpy().argmax())
        raise UserError(
            f"Column {column.name} of {name} holds lists, but row {before + row + 1} has none",
            got=reprlib.repr(values.tolist()[row]), fix="Use Parquet or JSON lines, since CSV has no lists",
        )  # fmt: skip
    kind = _kind_of_elements(column)
    if kind not in (*NUMBERS, "string"):
        return values
    for row, value in enumerate(values, before + 1):
        elements = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(elements, list | tuple) and not all(_fits(element, kind) for element in elements):
            raise UserError(
                f"Column {column.name} of {name} is wrong in row {row}", got=reprlib.repr(elements),
                allowed=f"a list, each element {WORDS[kind]}",
            )  # fmt: skip
    return values if kind in (*INTEGERS, "string") else values.map(_floats)


def _fits(element: Any, kind: str) -> bool:
    """Whether an element of a list, also one of NumPy, is of a kind. Among numbers with a fraction None becomes NaN."""
    if kind == "string" or element is None:  # MLflow cuts all texts of a list with something else to one letter
        return isinstance(element, str) or kind not in (*INTEGERS, "string")
    return isinstance(element, Integral if kind in INTEGERS else Real) and not isinstance(element, bool)


def _bytes(value: Any) -> Any:
    """Decode base64 text, to None if it is invalid; other values are unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError:
        return None


def _floats(value: Any) -> Any:
    """A list of numbers with its whole ones as floats, which JSON does not tell apart; other values are unchanged."""
    if isinstance(value, list) and value and all(type(number) in (int, float) for number in value):
        return [float(number) for number in value]
    return value


def _kind_of_elements(column: Any) -> str:
    """The kind of an array's elements; empty for other columns and for arrays of arrays."""
    return str(getattr(getattr(column.type, "dtype", None), "name", ""))


def _kind(column: Any) -> str:
    """``long``, ``string`` ...; empty for arrays, objects and maps."""
    return str(getattr(column.type, "name", ""))


def empty(spec: Any) -> pd.DataFrame:
    """A table without rows, with the columns of a signature's outputs."""
    import pandas as pd

    types = {column.name: column.type for column in columns_of(spec) or ()}
    return pd.DataFrame({name: pd.Series(dtype=kind.to_pandas() if hasattr(kind, "to_pandas") else object)
                         for name, kind in types.items()})  # fmt: skip


def check_format(role: str, name: str) -> None:
    """Raise UserError for a file whose name has no known ending."""
    if name != STREAM and Path(name).suffix not in FORMATS:
        raise UserError(f"The {role} {name} has no known format", allowed=[f"NAME{end}" for end in FORMATS])


def check_output(target: str, source: str) -> None:
    """Raise UserError for an output that cannot be written or would replace its input."""
    check_format("output", target)
    if target == STREAM:
        return
    if source != STREAM and Path(source).resolve() == Path(target).resolve():
        raise UserError(f"The output {target} is the input, which it would replace", fix="Name another file")
    if not Path(target).absolute().parent.is_dir():
        raise UserError(f"The folder of the output {target} does not exist", fix="Create it, or correct the path")
    if Path(target).is_dir():
        raise UserError(f"The output {target} is a folder", fix="Name a file")


@contextmanager
def output(target: str) -> Iterator[Callable[[pd.DataFrame], object]]:
    """A function that writes frames to standard output, or to a file that gets its name when it is complete."""
    if target == STREAM:
        yield lambda frame: sys.stdout.write(_json_text(frame))
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, closing(_Sink(file, path.suffix)) as sink:
            yield sink.write
            sink.finish()
        part.replace(path)
    except OSError as error:
        code = UNAVAILABLE if disk.is_full(error) else USAGE
        raise UserError(f"{target} cannot be written: {error.strerror or error}", code=code) from None
    finally:
        part.unlink(missing_ok=True)


class _Sink:
    """Writes frames in the format of a file; in CSV and Parquet the first frame sets the columns."""

    def __init__(self, file: IO[bytes], suffix: str) -> None:
        self._file = file
        self._suffix = suffix
        self._columns: list[Any] | None = None
        self._schema: Any = None  # of Parquet; a column has no type before its first value
        self._untyped: list[Any] = []  # tables that wait for the types
        self._writer: Any = None

    def write(self, frame: pd.DataFrame) -> None:
        if self._suffix == ".jsonl":
            self._file.write(_json_text(frame).encode())
            return
        columns = list(frame.columns)
        if self._columns is not None and columns != self._columns:
            if {*columns} != {*self._columns}:
                before, after = (", ".join(map(str, names)) for names in (self._columns, columns))
                raise _no_table(f"after columns {before} come {after}")
            frame = frame[self._columns]
        if self._suffix == ".parquet":
            self._write_parquet(frame)
        else:
            self._file.write(_csv_text(frame, header=self._columns is None).encode())
        self._columns = self._columns or columns

    def _write_parquet(self, frame: pd.DataFrame) -> None:
        import pyarrow as pa

        try:
            table = pa.Table.from_pandas(frame, self._with_types_of(frame), preserve_index=False)
        except (KeyError, pa.ArrowException) as error:
            raise _no_table(one_line(error)) from None
        self._schema = table.schema
        self._untyped.append(table)
        if self._writer or len(self._untyped) == MOST_UNTYPED or not any(map(pa.types.is_null, self._schema.types)):
            self._flush()

    def _with_types_of(self, frame: pd.DataFrame) -> Any:
        """The schema so far, with the types of columns of which ``frame`` has the first values."""
        import pyarrow as pa

        if self._writer or self._schema is None:
            return self._schema
        fields = [
            pa.field(one.name, pa.Array.from_pandas(frame[one.name]).type) if pa.types.is_null(one.type) else one
            for one in self._schema
        ]
        return pa.schema(fields, self._schema.metadata)

    def _flush(self) -> None:
        import pyarrow.parquet as pq

        self._writer = self._writer or pq.ParquetWriter(self._file, self._schema)
        for table in self._untyped:
            self._writer.write_table(table.cast(self._writer.schema))
        self._untyped = []

    def finish(self) -> None:
        """Write what is left."""
        if self._untyped:
            self._flush()
        if self._writer:
            self._writer.close()

    def close(self) -> None:
        """End the writer, also after an error, which it would repeat."""
        with suppress(Exception):
            if self._writer:
                self._writer.close()


def _no_table(why: str) -> RunFailed:
    return RunFailed("Prediction", f"the predictions do not fit into one table: {why}. JSON lines take them")


def _json_text(frame: pd.DataFrame) -> str:
    """JSON lines, one object a row; a number that is not finite becomes null."""
    if frame.empty:
        return ""
    return frame.to_json(orient="records", lines=True, double_precision=15, date_format="iso", force_ascii=False)


def _csv_text(frame: pd.DataFrame, header: bool) -> str:
    """CSV; a list is written as JSON in its cell."""
    lists = {name: column.map(_cell) for name, column in frame.items() if column.dtype.kind == "O"}
    return frame.assign(**{str(name): column for name, column in lists.items()}).to_csv(index=False, header=header)


def _cell(value: Any) -> Any:
    if isinstance(value, list) or hasattr(value, "tolist"):
        return json.dumps(value, default=lambda array: array.tolist())
    return value
