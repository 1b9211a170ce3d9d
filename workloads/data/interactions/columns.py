"""Read the columns of a table of interactions, CSV or Parquet, by name. Errors name the line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workloads.data.errors import DataError
from workloads.data.files import content

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMS = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
"""File name endings of tables."""

_EXPECTED = "columns user and item and, where there are any, rating and timestamp"
_SHOWN = 60
_LONGEST = 255  # longest id, in bytes
_ROLES = {
    **dict.fromkeys(("user", "user_id", "userid"), "user"),
    **dict.fromkeys(("item", "item_id", "itemid"), "item"),
    "rating": "rating",
    "timestamp": "timestamp",
}


class Columns(NamedTuple):
    """Users and items as Arrow arrays, int64 or large_string; rating float32 and timestamp int64 (seconds), (n,)."""

    file: Path
    user: Any
    item: Any
    rating: NDArray[np.float32] | None
    timestamp: NDArray[np.int64] | None

    def error(self, row: int, what: str, got: str, expected: str) -> DataError:
        """The error for a row, counted from 0."""
        return _fault(self.file, row, what, got, expected)


def read_columns(file: Path) -> Columns:
    """Read a table. Ignores columns with other names.

    Raises:
        DataError: a column is missing, a line has another number of fields, an id is missing or neither an integer nor
            text, a rating or time is not a number, or there is no row. It names file and line (in Parquet the row).
    """
    columns = _parquet(file) if file.suffix == ".parquet" else _text(file)
    if not len(columns["user"]):
        raise DataError("the file is empty", file=file, line=1, got="no interaction", expected="a row for each")
    user, item = (_ids(file, role, columns[role]) for role in ("user", "item"))
    return Columns(file, user, item, _ratings(file, columns.get("rating")), _times(file, columns.get("timestamp")))


def _text(file: Path) -> dict[str, Any]:
    """Columns of a CSV or TSV file by role, as text."""
    import csv as lines

    import pyarrow as pa
    from pyarrow import csv

    text = content(file).removeprefix(b"\xef\xbb\xbf")
    separator = "\t" if ".tsv" in file.suffixes else ","
    first = text.partition(b"\n")[0].decode(errors="backslashreplace").rstrip("\r")
    names = next(lines.reader([first], delimiter=separator), [])
    roles = _roles(file, names, repr(first[:_SHOWN]))
    uneven: list[Any] = []
    try:
        table = csv.read_csv(
            pa.py_buffer(text),
            # One thread: with more, Arrow does not number the rows.
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=separator,
                ignore_empty_lines=False,
                invalid_row_handler=lambda row: uneven.append(row) or "skip",  # type: ignore[func-returns-value]
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(roles.values(), pa.large_string()), include_columns=list(roles.values())
            ),
        )
    except pa.ArrowInvalid as error:
        for number, line in enumerate(text.splitlines(), 1):
            if b"\x00" in line or line.decode(errors="ignore").encode() != line:
                got = repr(line[:_SHOWN])
                raise DataError("the line is not UTF-8 text", file=file, line=number, got=got) from None
        raise DataError("the table cannot be parsed", file=file, got=str(error)) from None
    if uneven:
        row = uneven[0]
        what = "the line is truncated" if row.actual_columns < row.expected_columns else "the line has too many fields"
        got = repr(row.text[:_SHOWN])
        expected = f"{row.expected_columns} fields, as in the first line"
        raise DataError(what, file=file, line=row.number, got=got, expected=expected)
    return {role: table.column(name).combine_chunks() for role, name in roles.items()}


def _parquet(file: Path) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        names = parquet.read_schema(file).names
        roles = _roles(file, names, ", ".join(names)[:_SHOWN] or "none")
        table = parquet.read_table(file, columns=list(roles.values()), use_threads=False)
    except pa.ArrowInvalid as error:
        raise DataError("the file is not Parquet, or is damaged", file=file, got=str(error)[:_SHOWN]) from None
    return {role: table.column(name).combine_chunks() for role, name in roles.items()}


def _roles(file: Path, names: list[str], got: str) -> dict[str, str]:
    """The column of each role; the first if several match."""
    roles: dict[str, str] = {}
    for name in names:
        if role := _ROLES.get(name.strip().lower()):
            roles.setdefault(role, name)
    if not {"user", "item"} <= roles.keys():
        line = None if file.suffix == ".parquet" else 1
        other = next((mark for mark in (";", "\t", "|", ",") if len(names) == 1 and mark in names[0]), None)
        fix = other and f"The first line looks separated by {other!r}: .csv is read with commas, .tsv with tabs"
        raise DataError("the columns are wrong", file=file, line=line, got=got, expected=_EXPECTED, fix=fix)
    return roles


def _ids(file: Path, role: str, column: Any) -> Any:
    """Ids as int64 or large_string, without nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.types
    kind = column.type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise _fault(file, row, f"an id is missing in column {role}", "nothing", "integers or text")
    if kinds.is_integer(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(f"column {role} holds an id beyond 63 bits", file=file) from None
    if not (kinds.is_string(kind) or kinds.is_large_string(kind)):
        raise DataError(
            f"column {role} holds neither integers nor text", file=file, got=str(kind), expected="integers or text",
            fix="Convert the ids, so that 7 and 7.0 are not taken for two",
        )  # fmt: skip
    column = column.cast(pa.large_string())
    lengths = pc.binary_length(column)
    for wrong, what in ((pc.equal(lengths, 0), "is missing"), (pc.greater(lengths, _LONGEST), "is too long")):
        if (row := pc.index(wrong, True).as_py()) >= 0:
            got = repr(column[row].as_py()[:_SHOWN])
            raise _fault(file, row, f"an id {what} in column {role}", got, f"1 to {_LONGEST} bytes")
    return column


def _ratings(file: Path, column: Any) -> NDArray[np.float32] | None:
    import numpy as np

    if column is None:
        return None
    values = _numbers(file, "rating", column, "float64")
    if not np.isfinite(values).all():
        row = int(np.isfinite(values).argmin())
        raise _fault(file, row, "column rating holds no number", repr(column[row].as_py()), "a finite number")
    return values.astype(np.float32)


def _times(file: Path, column: Any) -> NDArray[np.int64] | None:
    import pyarrow as pa

    if column is None:
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    return _numbers(file, "timestamp", column, "int64")


def _numbers(file: Path, role: str, column: Any, kind: str) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    expected = "a number" if kind == "float64" else "whole seconds since 1970"
    row = pc.index(column.is_null(), True).as_py()
    try:
        if row < 0:
            numbers: NDArray[Any] = column.cast(pa.type_for_alias(kind)).to_numpy(zero_copy_only=False)
            return numbers
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Find the value that failed.
        row = next((at for at, value in enumerate(column) if not _casts(value, kind)), 0)
    raise _fault(file, row, f"column {role} holds no number", repr(column[row].as_py()), expected)


def _casts(value: Any, kind: str) -> bool:
    import pyarrow as pa

    try:
        value.cast(pa.type_for_alias(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _fault(file: Path, row: int, what: str, got: str, expected: str) -> DataError:
    if file.suffix == ".parquet":
        return DataError(f"in row {row + 1} {what}", file=file, got=got, expected=expected)
    return DataError(what, file=file, line=row + 2, got=got, expected=expected)
