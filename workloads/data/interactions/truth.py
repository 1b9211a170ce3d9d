"""What is false among positives and negatives, by the planted truth, the injected noise or the ratings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.data.interactions.types import Interactions


def false_positives(data: Interactions) -> NDArray[np.bool_]:
    """Which interactions of train, (n,), are none: injected noise, or, where the truth is known, not liked.

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
    """Which interactions of train, (n,), a credence should be low for: rated 1, or injected noise (thesis 3.5.2).

    Raises:
        ValueError: there are no ratings.
    """
    if data.train_ratings is None:
        raise ValueError("the dataset has no ratings, so untrusted interactions are unknown")
    mask: NDArray[np.bool_] = data.train_ratings <= 1  # noise has rating 0
    return mask
