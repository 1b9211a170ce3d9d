"""A user's own prior probabilities of interactions, from a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workloads.data.errors import DataError
from workloads.data.files import python_values
from workloads.data.interactions.types import Interactions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EXPECTED = "columns item and p, and user where p depends on the user"


class OwnPrior(NamedTuple):
    """Probabilities ``p`` (n,), float32 in [0, 1], of ``items`` (n,) and, if they depend on it, ``users`` (n,)."""

    users: NDArray[np.int64] | None
    items: NDArray[np.int64]
    p: NDArray[np.float32]


def read_prior(file: Path, data: Interactions) -> OwnPrior:
    """Read a table of (user, item, p) or (item, p). Ids are those of the dataset's source.

    Raises:
        DataError: the file is missing, empty or not Parquet, a column is missing, p is not a number in [0, 1], an id
            is unknown to the dataset, or a row occurs twice. It names the row, from 1.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(file, use_threads=False)
        table.validate(full=True)  # Arrow reads text that is not UTF-8
    except OSError as error:
        raise DataError(f"the prior cannot be read ({error.strerror or error})", file=file) from None
    except pa.ArrowInvalid as error:
        raise DataError("the prior is not Parquet, or is damaged", file=file, got=str(error)[:60]) from None
    names = table.column_names
    if not {"item", "p"} <= set(names):
        raise DataError("the columns are wrong", file=file, got=", ".join(names) or "none", expected=_EXPECTED)
    if not table.num_rows:
        raise DataError("the prior is empty", file=file)
    p = _probabilities(file, table.column("p"))
    items = _numbers(file, "item", table.column("item"), data.item_ids, data.n_items)
    users = _numbers(file, "user", table.column("user"), data.user_ids, data.n_users) if "user" in names else None
    cells = items if users is None else users * data.n_items + items
    first = np.unique(cells, return_index=True)[1]
    if len(first) < len(cells):
        row = int(np.setdiff1d(np.arange(len(cells)), first)[0])
        what = "an item occurs twice" if users is None else "a pair of user and item occurs twice"
        raise DataError(what, file=file, line=row + 1, expected="every one once")
    return OwnPrior(users, items, p)


def _probabilities(file: Path, column: Any) -> NDArray[np.float32]:
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise DataError("column p holds no numbers", file=file, got=str(kind), expected="numbers in [0, 1]")
    values: NDArray[np.float32] = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float32)  # a null is NaN
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError("p is out of range", file=file, line=row + 1, got=f"{values[row]:g}", expected="a p in [0, 1]")
    return values


def _numbers(file: Path, role: str, column: Any, ids: NDArray[Any] | None, count: int) -> NDArray[np.int64]:
    """The numbers of ids, compared as text: one of the two files may hold numbers where the other has text."""
    import numpy as np

    values = python_values(file, role, column)
    known = range(count) if ids is None else (ids if ids.dtype.kind == "i" else np.char.decode(ids, "utf-8")).tolist()
    number = {str(name): index for index, name in enumerate(known)}
    numbers = np.array([-1 if value is None else number.get(_id_text(value), -1) for value in values], np.int64)
    unknown = np.flatnonzero(numbers < 0)
    if unknown.size:
        row = int(unknown[0])
        what = f"the dataset has no such {role}"
        raise DataError(
            what,
            file=file,
            line=row + 1,
            got=repr(values[row]),
            expected=f"{'an' if role == 'item' else 'a'} {role} id of the dataset",
        )
    return numbers


def _id_text(value: Any) -> str:
    """12 for 12, 12.0 and "12": a column of numbers with gaps is one of floats."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
