"""False positives and untrusted ratings, with and without a known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workloads.data import Interactions, load_interactions
from workloads.data.interactions.truth import false_positives, untrusted
from workloads.data.interactions.variants import with_noise

LIKED = {(0, 0), (0, 1), (0, 2), (1, 3)}
TRAIN = [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]


@pytest.fixture
def data() -> Interactions:
    truth = np.zeros((3, 4), np.bool_)
    truth[tuple(np.array([*LIKED]).T)] = True
    return Interactions(3, 4, np.array(TRAIN, np.int32), np.array([(0, 1)], np.int32), truth=truth)


def test_false_positives_are_in_train_and_not_liked(data: Interactions) -> None:
    assert false_positives(data).tolist() == [pair not in LIKED for pair in TRAIN]


def test_false_positives_without_a_truth_are_the_injected_noise() -> None:
    pairs = np.array(TRAIN, np.int32)
    noise = np.array([False, True, False, False, True])
    assert false_positives(Interactions(2, 4, pairs, pairs[:0], noise=noise)).tolist() == noise.tolist()
    with pytest.raises(ValueError, match="known"):
        false_positives(Interactions(2, 4, pairs, pairs[:0]))


def test_synthetic_data_has_false_positives_only_with_noise(tmp_path: Path) -> None:
    clean, noisy = (load_interactions("synthetic", tmp_path, noise=rate) for rate in (0.0, 0.25))
    assert not false_positives(clean).any()
    assert false_positives(noisy).mean() == pytest.approx(0.2, abs=1e-4)


def test_ratings_of_1_and_injected_pairs_are_untrusted() -> None:
    pairs = np.array(TRAIN, np.int32)
    data = Interactions(2, 8, pairs, pairs[:0], np.float32([1, 2, 5, 1, 3]), np.float32([]))
    assert untrusted(data).tolist() == [True, False, False, True, False]
    assert untrusted(with_noise(data, 0.4)).tolist() == [True, False, False, True, False, True, True]
    with pytest.raises(ValueError, match="no ratings"):
        untrusted(Interactions(2, 8, pairs, pairs[:0]))
