"""Who interacted with what: the data of every recommender."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Interactions:
    """Implicit feedback of ``n_users`` users on ``n_items`` items, split in train and test.

    ``train`` and ``test`` are int32 of shape (n, 2), one [user, item] a row, ids from 0, no pair twice and
    none in both. A user or an item without a row in ``train`` keeps its number: it is a candidate like the others
    and is ranked by what the model starts with. Row by row, where the source has them: the ratings, float32, and the
    times, int64, in seconds since 1970. ``noise`` is boolean, row by row of ``train``: what was injected and no one
    did; such a row has rating and time 0. ``truth`` is boolean of shape (n_users, n_items): the items a user truly
    likes, known for generated data only; what it holds beyond ``train`` are the false negatives.

    ``user_ids`` and ``item_ids`` are what number 0, 1, ... is called in the source: int64, or text as UTF-8 bytes of
    one width (dtype ``S``). None where the source itself numbers from 0.

    The arrays are shared by all trials of a process, so they are read-only: copy them to tensors.
    """

    n_users: int
    n_items: int
    train: NDArray[np.int32]
    test: NDArray[np.int32]
    train_ratings: NDArray[np.float32] | None = None
    test_ratings: NDArray[np.float32] | None = None
    truth: NDArray[np.bool_] | None = None
    train_times: NDArray[np.int64] | None = None
    test_times: NDArray[np.int64] | None = None
    noise: NDArray[np.bool_] | None = None
    user_ids: NDArray[Any] | None = None
    item_ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for array in self.arrays().values():
            array.setflags(write=False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {name: array for name, array in values.items() if array is not None}
