"""Read rating tables from text, fast. Errors name the line and its problem."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from workloads.data.errors import DataError
from workloads.data.files import content, decimal, plain_or_gz

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MISSING = {"", "nan", "na", "n/a", "null", "none"}
_SHOWN = 60  # characters of a damaged line in a message


@dataclass(frozen=True, slots=True)
class RatingColumns:
    """Form of a table: its columns in order, the numbers of ids (from ``first``), the rating scale, the layout.

    ``timestamp`` is empty if there is no fourth column. Without ``header``, the first line is a rating.
    """

    user: str
    item: str
    rating: str
    n_users: int
    n_items: int
    lowest: float
    highest: float
    timestamp: str = ""
    separator: str = ","
    header: bool = True
    first: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (self.user, self.item, self.rating, *([self.timestamp] if self.timestamp else []))

    @property
    def row(self) -> str:
        """Form of a line; the first line if there is a header."""
        return self.separator.replace("\t", "<tab>").join(self.names)

    def line(self, row: int) -> int:
        """Line number, from 1, of a row, from 0."""
        return row + 1 + self.header


class Ratings(NamedTuple):
    """A table in file order: pairs (n, 2) int32 of ids from 0, ratings (n,) float32, times (n,) int64."""

    pairs: NDArray[np.int32]
    ratings: NDArray[np.float32]
    times: NDArray[np.int64] | None


def read_ratings(file: Path, columns: RatingColumns, rows: int = 0) -> Ratings:
    """Read a table of ratings, ``file`` or ``<file>.gz``.

    Raises:
        DataError: a wrong header, a truncated line, an id that is missing, not an integer, negative or out of range, a
            rating that is not a number or off the scale, a time that is not an integer, a pair that occurs twice, or
            another number of rows than ``rows``. It names file and line.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    file = plain_or_gz(file)
    text = content(file)
    _check_start(file, text, columns)
    separator = columns.separator
    if len(separator) > 1:
        text = text.replace(separator.encode(), b"\t")
        separator = "\t"
    kinds = (pa.int64(), pa.int64(), pa.float32(), pa.int64())
    try:
        table = csv.read_csv(
            pa.py_buffer(text),
            # One thread: the table is small, and Arrow's pool would compete with the trainer's threads.
            read_options=csv.ReadOptions(
                use_threads=False, column_names=columns.names, skip_rows=1 if columns.header else 0
            ),
            parse_options=csv.ParseOptions(delimiter=separator, quote_char=False, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(column_types=dict(zip(columns.names, kinds)), null_values=[]),
        )
    except pa.ArrowInvalid as error:
        _raise_first_fault(file, columns, str(error))
    users, items, ratings, *times = (column.to_numpy() for column in table.columns)
    _check_values(file, columns, users, items, ratings)
    if rows and len(users) != rows:
        raise DataError("the file is not complete", file=file, got=f"{len(users)} rows", expected=f"{rows} rows")
    pairs = np.stack([users - columns.first, items - columns.first], axis=1).astype(np.int32)
    _check_unique(file, pairs, columns)
    return Ratings(pairs, ratings, times[0] if times else None)


def check_disjoint(train_file: Path, train: Ratings, test_file: Path, test: Ratings, columns: RatingColumns) -> None:
    """Check that no pair is in both parts.

    Raises:
        DataError: with the first such line of the test file, and its line in the train file.
    """
    import numpy as np

    from workloads.data.interactions.codes import encode

    codes = encode(train.pairs, columns.n_items)
    shared = np.flatnonzero(np.isin(encode(test.pairs, columns.n_items), codes))
    if shared.size:
        row = int(shared[0])
        twin = int(np.flatnonzero(codes == encode(test.pairs[row : row + 1], columns.n_items))[0])
        raise DataError(
            "a pair of the test part is also in the train part",
            file=plain_or_gz(test_file),
            line=columns.line(row),
            got=f"{_named(test.pairs[row], columns)} as in line {columns.line(twin)} of {train_file.name}",
            expected="no pair in both",
        )


def drop_shared(train: Ratings, test: Ratings, columns: RatingColumns) -> Ratings:
    """Remove test pairs that are also in train."""
    import numpy as np

    from workloads.data.interactions.codes import encode

    new = ~np.isin(encode(test.pairs, columns.n_items), encode(train.pairs, columns.n_items))
    return Ratings(test.pairs[new], test.ratings[new], None if test.times is None else test.times[new])


def _check_start(file: Path, text: bytes, columns: RatingColumns) -> None:
    first = text.partition(b"\n")[0].decode(errors="backslashreplace").rstrip("\r")
    if columns.header and first != columns.row:
        got = repr(first[:_SHOWN])
        raise DataError("the columns are wrong", file=file, line=1, got=got, expected=columns.row)
    if not text.strip() or (columns.header and not text.partition(b"\n")[2].strip()):
        raise DataError("the file is empty", file=file, line=1, got="no rating", expected=f"lines of {columns.row}")


def _check_values(
    file: Path, columns: RatingColumns, users: NDArray[np.int64], items: NDArray[np.int64], ratings: NDArray[np.float32]
) -> None:
    first = columns.first
    valid = (users >= first) & (users < first + columns.n_users) & (items >= first) & (items < first + columns.n_items)
    valid &= (ratings >= columns.lowest) & (ratings <= columns.highest)  # False for NaN
    if not valid.all():
        row = int(valid.argmin())
        fields = (str(users[row]), str(items[row]), f"{ratings[row]:g}", "0")
        fault = _fault(file, columns.line(row), fields[: len(columns.names)], columns)
        assert fault is not None  # the same bounds for each value
        raise fault


def _check_unique(file: Path, pairs: NDArray[np.int32], columns: RatingColumns) -> None:
    import numpy as np

    from workloads.data.interactions.codes import encode

    codes = encode(pairs, columns.n_items)
    order = np.argsort(codes, kind="stable")
    repeats = np.flatnonzero(codes[order][1:] == codes[order][:-1]) + 1
    if repeats.size:
        at = repeats[order[repeats].argmin()]
        first = int(order[at - 1])
        row = int(order[at])
        raise DataError(
            "a pair occurs twice",
            file=file,
            line=columns.line(row),
            got=f"{_named(pairs[row], columns)} as in line {columns.line(first)}",
            expected="every pair once",
        )


def _raise_first_fault(file: Path, columns: RatingColumns, otherwise: str) -> NoReturn:
    """Raise the first error of a damaged table."""
    for row, line in enumerate(content(file).splitlines()[columns.header :]):
        text = line.decode(errors="backslashreplace")
        fault = _fault(file, columns.line(row), tuple(text.split(columns.separator)), columns)
        if fault is not None:
            raise fault
    raise DataError("the table cannot be parsed", file=file, got=otherwise)


def _fault(file: Path, line: int, fields: tuple[str, ...], columns: RatingColumns) -> DataError | None:
    """First error of a line, or None."""
    names = columns.names
    if len(fields) != len(names):
        what = "the line is truncated" if len(fields) < len(names) else "the line has too many fields"
        got = repr(columns.separator.join(fields)[:_SHOWN])
        expected = f"{len(names)} fields {columns.row}"
        return DataError(what, file=file, line=line, got=got, expected=expected)
    user, item, rating, *time = (field.strip() for field in fields)
    for name, text, count in zip(names, (user, item), (columns.n_users, columns.n_items)):
        last = columns.first + count - 1
        if fault := _integer_fault(file, line, name, text, columns.first, last):
            return fault
    if fault := _rating_fault(file, line, rating, columns):
        return fault
    if time and re.fullmatch(r"-?[0-9]+", time[0], re.ASCII) is None:
        what = f"column {columns.timestamp} holds no integer"
        return DataError(what, file=file, line=line, got=repr(time[0][:_SHOWN]), expected="seconds since 1970")
    return None


def _integer_fault(file: Path, line: int, name: str, text: str, first: int, last: int) -> DataError | None:
    if text.lower() in _MISSING:
        what = f"a NaN in column {name}"
    elif re.fullmatch(r"-?[0-9]+", text) is None:
        what = f"column {name} holds no integer"
    elif text.startswith("-"):
        what = f"a negative id in column {name}"
    elif not (len(text) < 20 and first <= int(text) <= last):
        what = f"an id out of range in column {name}"
    else:
        return None
    got = repr(text[:_SHOWN])
    expected = f"an integer in {first}..{last}"
    return DataError(what, file=file, line=line, got=got, expected=expected)


def _rating_fault(file: Path, line: int, text: str, columns: RatingColumns) -> DataError | None:
    name = columns.rating
    expected = f"a {columns.rating} in {columns.lowest:g}..{columns.highest:g}"
    if text.lower() in _MISSING:
        what = f"a NaN in column {name}"
    else:
        try:
            value = decimal(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            what = f"column {name} holds no number"
        elif not columns.lowest <= value <= columns.highest:
            what = f"a {name} out of range in column {name}"
        else:
            return None
    return DataError(what, file=file, line=line, got=repr(text[:_SHOWN]), expected=expected)


def _named(pair: NDArray[np.int32], columns: RatingColumns) -> str:
    return f"{columns.user} {pair[0] + columns.first}, {columns.item} {pair[1] + columns.first}"
