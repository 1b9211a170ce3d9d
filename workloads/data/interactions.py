"""Who interacted with what: the data of every recommender."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Interactions:
    """Implicit feedback of ``n_users`` users on ``n_items`` items, split as its source splits it.

    ``train`` and ``test`` are int32 of shape (n, 2), one [user, item] a row, ids from 0, no pair twice and
    none in both. The ratings, where the source has them, are float32 of shape (n,), row by row. ``truth`` is
    boolean of shape (n_users, n_items): the items a user truly likes, known for generated data only; what it
    holds beyond ``train`` are the false negatives. The arrays are shared by all trials of a process, so they
    are read-only: copy them to tensors.
    """

    n_users: int
    n_items: int
    train: NDArray[np.int32]
    test: NDArray[np.int32]
    train_ratings: NDArray[np.float32] | None = None
    test_ratings: NDArray[np.float32] | None = None
    truth: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for array in self.arrays().values():
            array.setflags(write=False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {name: array for name, array in values.items() if array is not None}
