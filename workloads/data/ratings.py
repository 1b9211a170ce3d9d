"""Rating tables as text: read fast, and where one is damaged, the line and what is wrong with it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from workloads.data.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MISSING = {"", "nan", "na", "n/a", "null", "none"}
_SHOWN = 60  # characters of a damaged line that a message repeats


@dataclass(frozen=True, slots=True)
class RatingColumns:
    """The form of a table: its three columns, number of ids (from 0), smallest and largest rating."""

    user: str
    item: str
    rating: str
    n_users: int
    n_items: int
    lowest: float
    highest: float

    @property
    def header(self) -> str:
        """The expected first line, without its end."""
        return f"{self.user},{self.item},{self.rating}"


def read_ratings(file: Path, columns: RatingColumns) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Read a CSV file of ratings: pairs (n, 2) int32 and ratings (n,) float32, in the file's order.

    Raises:
        DataError: naming file and line of a wrong header, a truncated line, an id that is missing, no
            integer, negative or too large, a rating that is no number or out of range, or a pair that occurs
            twice.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    with file.open("rb") as lines:
        _check_header(file, lines.readline(), columns)
    try:
        table = csv.read_csv(
            file,
            # One thread: the table is small, and Arrow's pool would stay beside the trainer's threads.
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types={
                    columns.user: pa.int64(),
                    columns.item: pa.int64(),
                    columns.rating: pa.float32(),
                },
                null_values=[],
            ),
        )
    except pa.ArrowInvalid as error:
        _raise_first_fault(file, columns, str(error))
    users, items, ratings = (column.to_numpy() for column in table.columns)
    _check_values(file, columns, users, items, ratings)
    pairs = np.stack([users, items], axis=1).astype(np.int32)
    _check_unique(file, pairs, columns)
    return pairs, ratings


def check_disjoint(
    train_file: Path, train: NDArray[np.int32], test_file: Path, test: NDArray[np.int32], n_items: int
) -> None:
    """Refuse a split in which a pair stands in both parts.

    Raises:
        DataError: naming the first such line of the test file, and its line in the train file.
    """
    import numpy as np

    codes = _codes(train, n_items)
    shared = np.flatnonzero(np.isin(_codes(test, n_items), codes))
    if shared.size:
        row = int(shared[0])
        twin = int(np.flatnonzero(codes == _codes(test[row : row + 1], n_items))[0])
        raise DataError(
            "a pair of the test part is also in the train part",
            file=test_file,
            line=_line(row),
            got=f"user {test[row, 0]}, item {test[row, 1]} as in line {_line(twin)} of {train_file.name}",
            expected="no pair in both",
        )


def _check_header(file: Path, line: bytes, columns: RatingColumns) -> None:
    header = line.decode(errors="backslashreplace").rstrip("\r\n")
    if header != columns.header:
        got = repr(header[:_SHOWN])
        raise DataError("the columns are wrong", file=file, line=1, got=got, expected=columns.header)


def _check_values(
    file: Path,
    columns: RatingColumns,
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    ratings: NDArray[np.float32],
) -> None:
    valid = (users >= 0) & (users < columns.n_users) & (items >= 0) & (items < columns.n_items)
    valid &= (ratings >= columns.lowest) & (ratings <= columns.highest)  # False for NaN
    if not valid.all():
        row = int(valid.argmin())
        fields = (str(users[row]), str(items[row]), f"{ratings[row]:g}")
        fault = _fault(file, _line(row), fields, columns)
        assert fault is not None  # the same bounds, value by value
        raise fault


def _check_unique(file: Path, pairs: NDArray[np.int32], columns: RatingColumns) -> None:
    import numpy as np

    codes = _codes(pairs, columns.n_items)
    order = np.argsort(codes, kind="stable")
    repeats = np.flatnonzero(codes[order][1:] == codes[order][:-1]) + 1
    if repeats.size:
        at = repeats[order[repeats].argmin()]
        first, row = int(order[at - 1]), int(order[at])
        raise DataError(
            "a pair occurs twice",
            file=file,
            line=_line(row),
            got=f"user {pairs[row, 0]}, item {pairs[row, 1]} as in line {_line(first)}",
            expected="every pair once",
        )


def _raise_first_fault(file: Path, columns: RatingColumns, otherwise: str) -> NoReturn:
    """Find the line that Arrow's parser stumbled over and say it in the user's words."""
    with file.open("rb") as lines:
        next(lines)
        for number, line in enumerate(lines, start=2):
            text = line.decode(errors="backslashreplace").rstrip("\r\n")
            fault = _fault(file, number, tuple(text.split(",")), columns)
            if fault is not None:
                raise fault
    raise DataError("the table can not be parsed", file=file, got=otherwise)


def _fault(file: Path, line: int, fields: tuple[str, ...], columns: RatingColumns) -> DataError | None:
    """The first thing wrong with a line, or None."""
    names = (columns.user, columns.item, columns.rating)
    if len(fields) != len(names):
        what = "the line is truncated" if len(fields) < len(names) else "the line has too many fields"
        got, expected = repr(",".join(fields)[:_SHOWN]), f"{len(names)} fields {columns.header}"
        return DataError(what, file=file, line=line, got=got, expected=expected)
    *ids, rating = (field.strip() for field in fields)
    for name, text, count in zip(names, ids, (columns.n_users, columns.n_items)):
        expected = f"an integer in 0..{count - 1}"
        if text.lower() in _MISSING:
            what = f"a NaN in column {name}"
        elif re.fullmatch(r"-?[0-9]+", text) is None:
            what = f"column {name} holds no integer"
        elif text.startswith("-"):
            what = f"a negative id in column {name}"
        elif int(text) >= count:
            what = f"an id out of range in column {name}"
        else:
            continue
        return DataError(what, file=file, line=line, got=repr(text[:_SHOWN]), expected=expected)
    return _rating_fault(file, line, rating, columns)


def _rating_fault(file: Path, line: int, text: str, columns: RatingColumns) -> DataError | None:
    name, expected = columns.rating, f"a rating in {columns.lowest:g}..{columns.highest:g}"
    if text.lower() in _MISSING:
        what = f"a NaN in column {name}"
    else:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            what = f"column {name} holds no number"
        elif not columns.lowest <= value <= columns.highest:
            what = f"a rating out of range in column {name}"
        else:
            return None
    return DataError(what, file=file, line=line, got=repr(text[:_SHOWN]), expected=expected)


def _codes(pairs: NDArray[np.int32], n_items: int) -> NDArray[Any]:
    return pairs[:, 0].astype("int64") * n_items + pairs[:, 1]


def _line(row: int) -> int:
    return row + 2  # lines count from 1, and the header is the first
