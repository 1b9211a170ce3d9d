"""The type of interaction datasets, the data of every recommender."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Interactions:
    """Implicit feedback of ``n_users`` users on ``n_items`` items, split in train and test.

    ``train`` and ``test`` are int32 (n, 2) with rows [user, item], ids from 0, without duplicates and without common
    pairs. Users and items without a row in ``train`` keep their numbers: they are candidates, ranked by the initial
    model. Ratings (float32) and times (int64, in the source's unit) are by row, None if the source has none. ``noise``,
    boolean by row of ``train``, marks injected interactions, which have rating and time 0. ``truth``, boolean
    (n_users, n_items), is the items that a user truly likes, for generated data only; those not in ``train`` are the
    false negatives. ``held_out``, boolean by row of ``train``, is the validation part of a split by time; None: drawn.

    ``user_ids`` and ``item_ids`` are the source's ids of numbers 0, 1, ...: int64, or text as UTF-8 bytes of one width
    (dtype ``S``). None if the source numbers from 0.

    All trials of a process share the arrays, so they are read-only: copy them to tensors.
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
    held_out: NDArray[np.bool_] | None = None
    user_ids: NDArray[Any] | None = None
    item_ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for array in self.arrays().values():
            array.setflags(write=False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {name: array for name, array in values.items() if array is not None}
