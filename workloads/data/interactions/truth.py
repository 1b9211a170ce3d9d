"""False positives and untrusted interactions, by planted truth, injected noise or ratings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.data.interactions.types import Interactions


def false_positives(data: Interactions) -> NDArray[np.bool_]:
    """Mask (n,) of false interactions in train: injected noise, or, if the truth is known, items that are not liked.

    Raises:
        ValueError: neither is known.
    """
    noise = np.zeros(len(data.train), np.bool_) if data.noise is None else data.noise
    if data.truth is None:
        if data.noise is None:
            raise ValueError("neither noise nor truth is known: inject noise, or take a generated dataset")
        return noise
    return noise | ~data.truth[data.train[:, 0], data.train[:, 1]]


def untrusted(data: Interactions) -> NDArray[np.bool_]:
    """Mask (n,) of train interactions that should get a low credence: rated 1, or injected noise (thesis 3.5.2).

    Raises:
        ValueError: there are no ratings.
    """
    if data.train_ratings is None:
        raise ValueError("the dataset has no ratings, so untrusted interactions are unknown")
    mask: NDArray[np.bool_] = data.train_ratings <= 1  # noise has rating 0
    return mask
