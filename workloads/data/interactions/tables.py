"""Users' own interactions at a path: one table, or a folder with a train and a test part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workloads.data.cache import is_uri, local_path
from workloads.data.errors import DataError
from workloads.data.files import TABLES
from workloads.data.interactions.columns import Columns, has_dates, read_columns, row_error
from workloads.data.interactions.lightgcn import read_item_lists
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, check_no_validation, check_one_form, own_dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from workloads.data.partition import Column

_LISTS = (".txt",)
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_NUMBER = r"^-?[0-9]+(\.0)?$"


def is_path(name: str) -> bool:
    """Whether the name of a dataset is a path."""
    if "\0" in name:  # not a path either
        return False
    return os.sep in name or name.startswith("~") or name.lower().endswith(TABLES)


def absolute(name: str) -> str:
    """The absolute path; a name of the catalogue and a URI unchanged."""
    if is_uri(name):
        return name
    return os.path.abspath(os.path.expanduser(name)) if is_path(name) else name


def own_interactions(name: str) -> Dataset:
    """The dataset at an absolute path, or at a URI that has been staged.

    Raises:
        DataError: the path is relative, there is neither a table nor a folder with two parts, or it has a third one.
    """
    path = local_path(name)
    if not path.is_absolute():
        expected = "an absolute path"
        fix = f"Use {absolute(name)}"
        raise DataError("a dataset path must be absolute", got=repr(name), expected=expected, fix=fix)
    if path.is_dir():
        return _own(name, path, _parts(path))
    if not path.name.lower().endswith(TABLES):
        if not path.exists():
            raise DataError("there is nothing at this path", file=path, fix="Correct the path")
        expected = f"a table ({', '.join(TABLES)}) or a folder with the parts train and test"
        raise DataError("there is no dataset", file=path, expected=expected)
    return _own(name, path.parent, (path.name,))


def _parts(folder: Path) -> tuple[str, str]:
    ends = (*TABLES, *_LISTS)
    for part in ("train", "test"):
        check_one_form(folder, (f"{part}{end}" for end in ends))
    for end in ends:
        if (folder / f"train{end}").is_file() and (folder / f"test{end}").is_file():
            check_no_validation(folder, ends, "append its rows to the train part, from which validation is drawn")
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
    user and item the latest one counts, and without timestamps, or at one time, the last one in the file.

    Memory is proportional to the users and items. Arrays that are larger than some MB are in files of the cache.

    Raises:
        DataError: as :func:`~workloads.data.interactions.columns.read_columns`; the ids of a column are floats; a
            pair of the test part is also in the train part; or times are numbers in one part and dates in the other.
        CacheUnwritable: the cache cannot be written.
    """
    from workloads.data.interactions.codes import unless_counted

    users = _Numbering("user")
    items = _Numbering("item")
    _check_times([folder / file for file in files])
    tables = [_read(folder / file, users, items) for file in files]
    kept = _last_rows(tables, users, items)
    user_numbers, user_ids = users.sorted()
    item_numbers, item_ids = items.sorted()
    parts = [table.chosen(rows, user_numbers, item_numbers) for table, rows in zip(tables, kept)]
    train, test = parts[0], parts[-1]
    if len(parts) == 1:  # without a file, the test part is empty
        test = {name: array[:0] for name, array in train.items()}
    common = [name for name in train if name in test]
    return Interactions(
        len(user_ids),
        len(item_ids),
        **{f"train{name}": train[name] for name in common},
        **{f"test{name}": test[name] for name in common},
        user_ids=unless_counted(user_ids),
        item_ids=unless_counted(item_ids),
    )


def _check_times(files: list[Path]) -> None:
    """Raise DataError if one part has numbers and the other one dates, whose unit differs."""
    words = {file: "dates" if dated else "numbers" for file in files if (dated := has_dates(file)) is not None}
    if len(set(words.values())) > 1:
        train, test = files
        raise DataError(
            "the parts differ in column timestamp", file=test, got=words[test],
            expected=f"{words[train]}, as in {train.name}", fix="Write both with one type",
        )  # fmt: skip


class _Numbering:
    """Numbers of a column's ids, in the order in which they come."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._file: Path | None = None
        self.ids: Any = ()

    def numbers(self, file: Path, column: Any) -> NDArray[np.int32]:
        """The numbers of some rows of a file."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._file is None:
            self._file = file
            self.ids = column[:0]
        elif column.type != self.ids.type:
            raise DataError(
                f"the parts differ in column {self._role}", file=file, got=str(column.type),
                expected=f"{self.ids.type}, as in {self._file.name}",
            )  # fmt: skip
        encoded = column.dictionary_encode()
        numbers = pc.fill_null(pc.index_in(encoded.dictionary, value_set=self.ids), -1).to_numpy().copy()
        is_new = numbers < 0
        numbers[is_new] = len(self.ids) + np.arange(is_new.sum())
        self.ids = pa.concat_arrays([self.ids, encoded.dictionary.filter(pa.array(is_new))])
        numbered: NDArray[np.int32] = numbers[encoded.indices.to_numpy()]
        return numbered

    def sorted(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The place of each number among the ids in ascending order, and these ids.

        Raises:
            DataError: all ids are numbers, and some floats such as 7.0, as pandas writes integers after a missing one.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = self.ids
        if not pa.types.is_integer(ids.type):
            if pc.all(pc.match_substring_regex(ids, _INTEGER)).as_py():
                ids = ids.cast(pa.int64())
            elif pc.all(pc.match_substring_regex(ids, _NUMBER)).as_py():
                floats = ids.filter(pc.ends_with(ids, ".0"))
                if len(floats):
                    raise DataError(
                        f"column {self._role} holds floats", file=self._file, got=repr(floats[0].as_py()),
                        expected="integers or text", fix="Convert the ids, so that 7 and 7.0 are not taken for two",
                    )  # fmt: skip
        is_integer = pa.types.is_integer(ids.type)
        names = ids.to_numpy() if is_integer else np.array([text.encode() for text in ids.to_pylist()])
        order = np.argsort(names)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return places, names[order]


class _Table(NamedTuple):
    """The rows of a file, with the numbers of users and items, int32 (n,)."""

    file: Path
    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float32] | None
    timestamp: NDArray[np.int64] | None

    def chosen(
        self, rows: NDArray[np.bool_], users: NDArray[np.int64], items: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        """Pairs, ``_ratings`` and ``_times`` of the rows of a mask (n,), with new numbers of users and items."""
        import numpy as np

        from workloads.data.partition import select

        def pairs(part: slice) -> NDArray[np.int32]:
            return np.stack([users[self.user[part]], items[self.item[part]]], axis=1, dtype=np.int32)

        arrays = {"": select(pairs, rows)}
        for name, column in (("_ratings", self.rating), ("_times", self.timestamp)):
            if column is not None:
                arrays[name] = select(column, rows)
        return arrays


def _read(file: Path, users: _Numbering, items: _Numbering) -> _Table:
    import numpy as np

    from workloads.data.partition import Growing

    columns = {"user": Growing(np.int32), "item": Growing(np.int32)}
    for rows in _joined(read_columns(file), lambda: max(len(users.ids), len(items.ids))):
        columns["user"].append(users.numbers(file, rows.user))
        columns["item"].append(items.numbers(file, rows.item))
        for name, values in (("rating", rows.rating), ("timestamp", rows.timestamp)):
            if values is not None:
                columns.setdefault(name, Growing(values.dtype)).append(values)
    arrays = {name: column.array() for name, column in columns.items()}
    return _Table(file, arrays["user"], arrays["item"], arrays.get("rating"), arrays.get("timestamp"))


def _joined(blocks: Iterator[Columns], least: Callable[[], int]) -> Iterator[Columns]:
    """The rows in blocks of at least so many: each looks up its ids among all, of which a table is made."""
    import numpy as np
    import pyarrow as pa

    held: list[Columns] = []

    def joined() -> Columns:
        ratings, times = ([getattr(block, name) for block in held] for name in ("rating", "timestamp"))
        return Columns(
            pa.concat_arrays([block.user for block in held]),
            pa.concat_arrays([block.item for block in held]),
            None if ratings[0] is None else np.concatenate(ratings),
            None if times[0] is None else np.concatenate(times),
        )

    for block in blocks:
        held.append(block)
        if sum(len(one.user) for one in held) >= least():
            yield joined()
            held.clear()
    if held:
        yield joined()


def _last_rows(tables: list[_Table], users: _Numbering, items: _Numbering) -> list[NDArray[np.bool_]]:
    """For each table a mask (n,) of the rows that are the last of their pair, in time if the table has timestamps.

    Raises:
        DataError: a pair of the second table is also in the first.
    """
    import numpy as np

    from workloads.data.partition import key_counts, partition, ranges, row_numbers, scratch

    counts = [key_counts(table.user, len(users.ids)) for table in tables]
    firsts = ranges(np.sum(counts, axis=0))
    kept = [scratch((len(table.user),), np.bool_) for table in tables]
    divided = []
    for table in tables:
        columns: list[Column] = [row_numbers, table.user, table.item]
        if table.timestamp is not None:
            columns.append(table.timestamp)
        divided.append(partition(len(table.user), table.user, firsts, columns))
    shared: list[int] = []
    for parts in zip(*divided):
        codes = [user * np.int64(len(items.ids)) + item for _, user, item, *_ in parts]
        if len(tables) == 2:
            shared += parts[1][0][np.isin(codes[1], codes[0])][:1].tolist()
        for mask, (rows, _, _, *times), code in zip(kept, parts, codes):
            mask[rows[_last(code, *times)]] = True
    if shared:
        row = min(shared)
        train, test = tables
        user, item = (ids.ids[int(column[row])].as_py() for ids, column in ((users, test.user), (items, test.item)))
        got = f"user {user}, item {item}, as in {train.file.name}"
        what = "a pair of the test part is also in the train part"
        raise row_error(test.file, 0, row, what, got, "no pair in both")
    return kept


def _last(codes: NDArray[np.int64], *times: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the last row of each code; with ``times``, of the latest, of several the last."""
    import numpy as np

    order = np.lexsort((*times, codes))
    ordered = codes[order]
    return order[np.append(ordered[1:] != ordered[:-1], True)] if len(order) else order
