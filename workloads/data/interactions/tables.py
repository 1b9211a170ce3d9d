"""Users' own interactions at a path: one table, or a folder with a train and a test part."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.data.cache import is_uri, local_path
from workloads.data.errors import DataError
from workloads.data.interactions.columns import FORMS, Columns, read_columns
from workloads.data.interactions.lightgcn import read_item_lists
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, own_dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LISTS = (".txt",)
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


def is_path(name: str) -> bool:
    """Whether the name of a dataset is a path."""
    if "\0" in name:  # not a path either
        return False
    return os.sep in name or name.startswith("~") or name.endswith(FORMS)


def absolute(name: str) -> str:
    """The absolute path; a name of the catalogue and a URI unchanged."""
    if is_uri(name):
        return name
    return os.path.abspath(os.path.expanduser(name)) if is_path(name) else name


def own_interactions(name: str) -> Dataset:
    """The dataset at an absolute path, or at a URI that has been staged.

    Raises:
        DataError: the path is relative, or there is neither a table nor a folder with two parts.
    """
    path = local_path(name)
    if not path.is_absolute():
        expected = "an absolute path"
        fix = f"Use {absolute(name)}"
        raise DataError("a dataset path must be absolute", got=repr(name), expected=expected, fix=fix)
    if path.is_dir():
        return _own(name, path, _parts(path))
    if not path.name.endswith(FORMS):
        if not path.exists():
            raise DataError("there is nothing at this path", file=path, fix="Correct the path")
        expected = f"a table ({', '.join(FORMS)}) or a folder with the parts train and test"
        raise DataError("there is no dataset", file=path, expected=expected)
    return _own(name, path.parent, (path.name,))


def _parts(folder: Path) -> tuple[str, str]:
    ends = (*FORMS, *_LISTS)
    for end in ends:
        if (folder / f"train{end}").is_file() and (folder / f"test{end}").is_file():
            return f"train{end}", f"test{end}"
    expected = f"train and test, both with one of {', '.join(ends)}; or images, a sub-folder for each class"
    raise DataError("the folder does not hold the parts of a dataset", file=folder, expected=expected)


def _own(name: str, folder: Path, files: tuple[str, ...]) -> Dataset:
    reader = read_item_lists if files[0].endswith(_LISTS) else partial(read_tables, files=files)
    return own_dataset(name, "interactions", folder, files, reader)


def read_tables(folder: Path, files: tuple[str, ...]) -> Interactions:
    """Read one table, all of it train, or the parts train and test.

    Ids of users and items are integers or text. They are numbered in sorted order, those of both parts together, so
    that the order of rows does not matter. Text that is always an integer is read as integers. Of rows with the same
    user and item the last one counts.

    Raises:
        DataError: as :func:`~workloads.data.interactions.columns.read_columns`; or a pair of the test part is also in
            the train part.
    """
    import numpy as np

    tables = [read_columns(folder / file) for file in files]
    users, user_ids = _number("user", [(table.file, table.user) for table in tables])
    items, item_ids = _number("item", [(table.file, table.item) for table in tables])
    codes = [user * len(item_ids) + item for user, item in zip(users, items)]
    if len(tables) == 2:
        _check_disjoint(tables, codes)
    kept = [_last(code) for code in codes]
    arrays: dict[str, list[NDArray[Any]]] = {
        "": [np.stack([user[rows], item[rows]], axis=1, dtype=np.int32) for user, item, rows in zip(users, items, kept)]
    }
    for name, columns in (
        ("_ratings", [table.rating for table in tables]),
        ("_times", [table.timestamp for table in tables]),
    ):
        present = [column[rows] for column, rows in zip(columns, kept) if column is not None]
        if len(present) == len(tables):
            arrays[name] = present
    return Interactions(
        len(user_ids),
        len(item_ids),
        # Without a file, the test part is empty.
        **{f"train{name}": parts[0] for name, parts in arrays.items()},
        **{f"test{name}": parts[1] if len(parts) == 2 else parts[0][:0] for name, parts in arrays.items()},
        user_ids=_unless_counted(user_ids),
        item_ids=_unless_counted(item_ids),
    )


def _number(role: str, columns: list[tuple[Path, Any]]) -> tuple[list[NDArray[np.int64]], NDArray[Any]]:
    """Ids of each column as numbers from 0, and the id of each number, ascending."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = [column.type for _, column in columns]
    if len(set(kinds)) > 1:
        raise DataError(
            f"the parts differ in column {role}", file=columns[1][0], got=str(kinds[1]),
            expected=f"{kinds[0]}, as in {columns[0][0].name}",
        )  # fmt: skip
    encoded = pa.concat_arrays([column for _, column in columns]).dictionary_encode()
    ids = encoded.dictionary
    if not pa.types.is_integer(ids.type) and pc.all(pc.match_substring_regex(ids, _INTEGER)).as_py():
        ids = ids.cast(pa.int64())
    names = ids.to_numpy() if pa.types.is_integer(ids.type) else np.array([text.encode() for text in ids.to_pylist()])
    order = np.argsort(names)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    ends = np.cumsum([len(column) for _, column in columns])[:-1]
    return np.split(number[encoded.indices.to_numpy()], ends), names[order]


def _check_disjoint(tables: list[Columns], codes: list[NDArray[np.int64]]) -> None:
    import numpy as np

    shared = np.flatnonzero(np.isin(codes[1], codes[0]))
    if shared.size:
        row = int(shared[0])
        test = tables[1]
        got = f"user {test.user[row].as_py()}, item {test.item[row].as_py()}, as in {tables[0].file.name}"
        raise test.error(row, "a pair of the test part is also in the train part", got, "no pair in both")


def _last(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last row of each code, ascending."""
    import numpy as np

    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    rows: NDArray[np.int64] = np.sort(order[np.append(ordered[1:] != ordered[:-1], True)])
    return rows


def _unless_counted(ids: NDArray[Any]) -> NDArray[Any] | None:
    """The ids; None if they are 0, 1, ..."""
    import numpy as np

    return None if ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids))) else ids
