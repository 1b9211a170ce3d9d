"""Stratified, seeded splits of images, computed without a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.data.errors import DataError
from workloads.data.images.types import Images
from workloads.data.interactions.splits import hold_out

VALIDATION_FRACTION = 0.1
"""Share of each class' labelled training images that is held out for validation."""

TEST_FRACTION = 0.2
"""Share of each class in the test part of a source without one. Does not depend on the seed of the validation split."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Positions of images, ascending int64: ``train`` and ``validation`` in the source's train part.

    ``test``: positions in its test part, or, if it has none (``carved``), in the train part too.
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    carved: bool


def split(data: Images, split_seed: int, holdout: bool) -> Parts:
    """Split the decoded images. Images without a label are always in train.

    Raises:
        workloads.data.DataError: no image can be held out for validation.
    """
    rows = data.train.rows
    test = data.test.rows
    carved = not len(test)
    if carved:
        chosen = _stratified(data.train.labels[rows], len(data.classes), TEST_FRACTION, seed=0)
        rows, test = rows[~chosen], rows[chosen]
    held = np.zeros(len(rows), np.bool_)
    if holdout:
        held = _stratified(data.train.labels[rows], len(data.classes), VALIDATION_FRACTION, split_seed)
        if not held.any():
            raise DataError("no class has two labelled images, so that none can be held out for validation")
    return Parts(rows[~held], rows[held], test, carved)


def _stratified(labels: NDArray[np.int64], n_classes: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Images to hold out: a share of each class' labelled images, at least one if there are two."""
    labelled = np.flatnonzero(labels >= 0)
    pairs = np.stack([labels[labelled], labelled], axis=1)
    mask = np.zeros(len(labels), np.bool_)
    mask[labelled] = hold_out(pairs, n_classes, fraction, seed)
    return mask
