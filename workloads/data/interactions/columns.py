"""Read the columns of a table of interactions, CSV or Parquet, by name, in blocks of rows. Errors name the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from workloads.data.errors import DataError
from workloads.data.files import is_parquet, opened, parquet_errors

if TYPE_CHECKING:
    from gzip import GzipFile
    from io import BufferedReader

    import numpy as np
    from numpy.typing import NDArray

_EXPECTED = "columns user and item and, where there are any, rating and timestamp"
_SHOWN = 60
_LONGEST = 255  # longest id, in bytes
_BLOCK_BYTES = 2**22  # of text that are read at a time
_BLOCK_ROWS = 2**17  # of Parquet
_EMPTY = re.compile(rb"\n(?=\r?\n)")  # ahead of an empty line
_ROLES = {
    **dict.fromkeys(("user", "user_id", "userid"), "user"),
    **dict.fromkeys(("item", "item_id", "itemid", "movie_id", "movieid"), "item"),
    "rating": "rating",
    "timestamp": "timestamp",
}


Fault: TypeAlias = Callable[[int, str, str, str], DataError]
"""The error for a row of a block, counted from 0: what, got, expected."""


class Columns(NamedTuple):
    """Some rows of a table: users and items as Arrow arrays, int64 or large_string; rating float32 and timestamp int64,
    (n,). A timestamp is the source's number, or in microseconds since 1970 if it is of Parquet's type."""

    user: Any
    item: Any
    rating: NDArray[np.float32] | None
    timestamp: NDArray[np.int64] | None


def read_columns(file: Path) -> Iterator[Columns]:
    """Read a table, some thousands of rows at a time. Ignores columns with other names, and empty lines.

    Raises:
        DataError: a column is missing, a line has another number of fields, an id is missing, is neither an integer nor
            text, or has blanks around it, a rating or time is not a number, a quoted value spans lines, or there is no
            row. It names file and line (in Parquet the row).
    """
    first = 0
    try:
        for columns in _parquet(file) if is_parquet(file) else _text(file):
            fault = partial(row_error, file, first)
            user, item = (_ids(file, role, columns[role], fault) for role in ("user", "item"))
            yield Columns(user, item, _ratings(columns.get("rating"), fault), _times(columns.get("timestamp"), fault))
            first += len(user)
    except DataError as error:
        # Behind a value of several lines rows are cut elsewhere and lines are counted wrongly.
        raise (not is_parquet(file) and _spanning(file, error.line)) or error from None
    if not first:
        raise DataError("the file is empty", file=file, line=1, got="no interaction", expected="a row for each")


def check_columns(file: Path) -> None:
    """Check the names of a table's columns.

    Raises:
        DataError: a column is missing, two have one role, or the file is damaged or cannot be read.
    """
    from pyarrow import parquet

    try:
        if is_parquet(file):
            with parquet_errors(file):
                _named_roles(file, parquet.read_schema(file).names)
        else:
            _text_roles(file)
    except OSError as error:
        raise DataError("the file cannot be read", file=file, got=error.strerror or str(error)) from None


def has_dates(file: Path) -> bool | None:
    """Whether the times of a table have Parquet's timestamp type; None if it has no times."""
    import pyarrow as pa
    from pyarrow import parquet

    if not is_parquet(file):
        return False if "timestamp" in _text_roles(file)[0] else None
    with parquet_errors(file):
        schema = parquet.read_schema(file)
    name = _named_roles(file, schema.names).get("timestamp")
    return None if name is None else bool(pa.types.is_timestamp(schema.field(name).type))


def names_interactions(names: Iterable[str]) -> bool:
    """Whether columns of users and of items are among a table's columns."""
    return {"user", "item"} <= {_role(name) for name in names}


def _text_roles(file: Path) -> tuple[dict[str, str], bool]:
    """The column of each role, and whether nothing follows the first line."""
    with opened(file) as text:
        first = text.readline().removeprefix(b"\xef\xbb\xbf").decode(errors="backslashreplace").rstrip("\r\n")
        is_empty = not text.read(1)
    shown = repr(first[:_SHOWN])
    try:
        names = next(csv.reader([first], delimiter=_separator(file)), [])
    except csv.Error:
        fix = "End the lines with LF or CR LF" if "\r" in first else None
        raise DataError(
            "the first line cannot be read", file=file, line=1, got=shown, expected=_EXPECTED, fix=fix
        ) from None
    return _roles(file, names, shown), is_empty


def _text(file: Path) -> Iterator[Mapping[str, Any]]:
    """Columns of a CSV or TSV file by role, as text."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    roles, is_empty = _text_roles(file)
    if is_empty:
        return
    uneven: list[Any] = []
    rows = 0
    with opened(file) as text:
        counted = _CountedLines(text)
        try:
            batches = arrow_csv.open_csv(
                counted,
                # One thread: with more, Arrow does not number the rows.
                read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=_separator(file),
                    invalid_row_handler=lambda row: uneven.append(row) or "skip",  # type: ignore[func-returns-value]
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(roles.values(), pa.large_string()),
                    include_columns=list(roles.values()),
                ),
            )
            for batch in batches:
                if uneven:
                    break
                rows += len(batch)
                yield {role: batch.column(name) for role, name in roles.items()}
        except pa.ArrowInvalid as error:
            raise _unparsed(file) or DataError("the table cannot be parsed", file=file, got=str(error)) from None
    if uneven:
        row = uneven[0]
        what = "the line is truncated" if row.actual_columns < row.expected_columns else "the line has too many fields"
        got = repr(row.text[:_SHOWN])
        expected = f"{row.expected_columns} fields, as in the first line"
        raise DataError(what, file=file, line=_line(file, row.number), got=got, expected=expected)
    if rows != counted.lines - 1 and (spanning := _spanning(file)):
        raise spanning


def _separator(file: Path) -> str:
    return "\t" if ".tsv" in Path(file.name.lower()).suffixes else ","


class _CountedLines:
    """A file that counts the lines that are read from it, without empty ones.

    An empty line of CR LF at the end of a block may be counted.
    """

    closed = False

    def __init__(self, file: BufferedReader | GzipFile) -> None:
        self._file = file
        self._ends = 0
        self._last = b"\n"

    @property
    def lines(self) -> int:
        return self._ends + (self._last != b"\n")

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._ends += block.count(b"\n")
        if b"\n\n" in (joined := self._last + block) or b"\n\r\n" in joined:
            self._ends -= len(_EMPTY.findall(joined))
        self._last = block[-1:] or self._last
        return block


def _spanning(file: Path, until: int | None = None) -> DataError | None:
    """The error for the first quoted value that spans lines, if it begins before line ``until``."""
    if until == 1:
        return None
    with opened(file) as text:
        line = 1
        reader = csv.reader(TextIOWrapper(text, "utf-8", "replace", newline=""), delimiter=_separator(file))
        try:
            for _ in reader:
                if reader.line_num > line:
                    break
                line += 1
                if until is not None and line >= until:
                    return None
            else:
                return None
        except csv.Error:  # longer than Python allows
            pass
    return DataError(
        "a quoted value spans lines, or its quote is not closed", file=file, line=line,
        expected="a row a line", fix="Leave the column out, close the quote, or write the table as Parquet",
    )  # fmt: skip


def _unparsed(file: Path) -> DataError | None:
    """The error for the first line that is not text."""
    with opened(file) as text:
        for number, line in enumerate(text, 1):
            if b"\x00" in line or line.decode(errors="ignore").encode() != line:
                got = repr(line.rstrip(b"\r\n")[:_SHOWN])
                return DataError("the line is not UTF-8 text", file=file, line=number, got=got)
    return None


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    from pyarrow import parquet

    # Mapped, since buffers that a file is read into are kept until its end.
    with parquet_errors(file), parquet.ParquetFile(file, memory_map=True) as table:
        roles = _named_roles(file, table.schema_arrow.names)
        for batch in table.iter_batches(_BLOCK_ROWS, columns=list(roles.values()), use_threads=False):
            batch.validate(full=True)  # Arrow reads text that is not UTF-8
            yield {role: batch.column(name) for role, name in roles.items()}


def _named_roles(file: Path, names: list[str]) -> dict[str, str]:
    return _roles(file, names, ", ".join(names)[:_SHOWN] or "none")


def _role(name: str) -> str | None:
    return _ROLES.get(name.strip().lower().removesuffix(":token").removesuffix(":float"))  # RecBole's types


def _roles(file: Path, names: list[str], got: str) -> dict[str, str]:
    """The column of each role."""
    roles: dict[str, str] = {}
    line = None if is_parquet(file) else 1
    for name in names:
        role = _role(name)
        if role in roles:
            what = f"columns {roles[role].strip()} and {name.strip()} both name the {role}"
            raise DataError(what, file=file, line=line, fix="Rename or remove one of them")
        if role:
            roles[role] = name
    if not {"user", "item"} <= roles.keys():
        other = next((mark for mark in (";", "\t", "|", ",") if len(names) == 1 and mark in names[0]), None)
        fix = other and f"The first line looks separated by {other!r}: .csv is read with commas, .tsv with tabs"
        raise DataError("the columns are wrong", file=file, line=line, got=got, expected=_EXPECTED, fix=fix)
    return roles


def _ids(file: Path, role: str, column: Any, fault: Fault) -> Any:
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
        raise fault(row, f"an id is missing in column {role}", "nothing", "integers or text")
    if kinds.is_integer(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(f"column {role} holds an id beyond 63 bits", file=file) from None
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        raise DataError(
            f"column {role} holds neither integers nor text", file=file, got=str(kind), expected="integers or text",
            fix="Convert the ids, so that 7 and 7.0 are not taken for two",
        )  # fmt: skip
    column = column.cast(pa.large_string())
    lengths = pc.binary_length(column)
    size = f"1 to {_LONGEST} bytes"
    faults = [(pc.equal(lengths, 0), "is missing", size), (pc.greater(lengths, _LONGEST), "is too long", size)]
    faults.append((pc.ends_with(column, "\0"), "ends with a zero byte", "an id without it"))  # NumPy would drop it
    trimmed = pc.binary_length(pc.utf8_trim_whitespace(column))
    faults.append((pc.not_equal(lengths, trimmed), "has blanks around it", "an id without them"))
    for wrong, what, expected in faults:
        if (row := pc.index(wrong, True).as_py()) >= 0:
            got = repr(column[row].as_py()[:_SHOWN])
            raise fault(row, f"an id {what} in column {role}", got, expected)
    return column


def _ratings(column: Any, fault: Fault) -> NDArray[np.float32] | None:
    import numpy as np

    if column is None:
        return None
    with np.errstate(over="ignore"):
        values = _numbers("rating", column, "float64", fault).astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.isfinite(values).argmin())
        raise fault(row, "column rating holds no number", repr(column[row].as_py()), "a finite number of 32 bits")
    return values


def _times(column: Any, fault: Fault) -> NDArray[np.int64] | None:
    import pyarrow as pa

    if column is None:
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return _numbers("timestamp", column, "int64", fault)


def _numbers(role: str, column: Any, kind: str, fault: Fault) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    what = "number" if kind == "float64" else "whole number"
    expected = "a number" if kind == "float64" else "one such as seconds since 1970"
    row = pc.index(column.is_null(), True).as_py()
    try:
        if row < 0:
            numbers: NDArray[Any] = _cast(column, kind).to_numpy(zero_copy_only=False)
            return numbers
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Find the value that failed.
        row = next((at for at, value in enumerate(column) if not _casts(value, kind)), 0)
    raise fault(row, f"column {role} holds no {what}", repr(column[row].as_py()), expected)


def _cast(values: Any, kind: str) -> Any:
    """An array or a value as ``kind``, an integer also from text such as 10.0."""
    import pyarrow as pa

    try:
        return values.cast(pa.type_for_alias(kind))
    except pa.ArrowInvalid:
        return values.cast(pa.float64()).cast(pa.type_for_alias(kind))


def _casts(value: Any, kind: str) -> bool:
    import pyarrow as pa

    try:
        _cast(value, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def row_error(file: Path, first: int, row: int, what: str, got: str, expected: str) -> DataError:
    """The error for a row, counted from 0 behind the ``first`` rows."""
    if is_parquet(file):
        return DataError(f"in row {first + row + 1} {what}", file=file, got=got, expected=expected)
    return DataError(what, file=file, line=_line(file, first + row + 2), got=got, expected=expected)


def _line(file: Path, place: int) -> int:
    """The number of the line at a place, from 1, among those that are not empty."""
    with opened(file) as text:
        filled = (number for number, line in enumerate(text, 1) if line.strip(b"\r\n"))
        return next(islice(filled, place - 1, None), place)
