"""The original LastFM dataset, if ORCHESTRATOR_DATA holds it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workloads.data import load_interactions, verify
from workloads.data.datasets import friends

pytestmark = pytest.mark.data


@pytest.fixture
def root() -> Path:
    held = Path(os.environ["ORCHESTRATOR_DATA"])
    if not list((held / "lastfm").glob("data1.txt*")):
        pytest.skip("ORCHESTRATOR_DATA holds no lastfm")
    return held


def test_lastfm_has_the_expected_counts_of_users_items_and_pairs(root: Path) -> None:
    assert verify("lastfm", root) == []
    data = load_interactions("lastfm", root)
    assert (data.n_users, data.n_items) == (1892, 4489)
    assert (len(data.train), len(data.test)) == (42_135, 10_533)
    users = [set(part[:, 0].tolist()) for part in (data.train, data.test)]
    assert [len(part) for part in users] == [1878, 1858]
    assert len(users[1] - users[0]) == 2  # users without a positive to learn from


def test_lastfm_pairs_equal_those_read_by_pandas(root: Path) -> None:
    data = load_interactions("lastfm", root)
    for name, pairs in (("data1", data.train), ("test1", data.test)):
        (file,) = (root / "lastfm").glob(f"{name}.txt*")
        table = pd.read_csv(file, sep="\t", header=None)
        np.testing.assert_array_equal(pairs, table[[0, 1]].to_numpy() - 1)


def test_trust_network_contains_each_friendship_in_both_orders(root: Path) -> None:
    """The source counts 12,717 friendships; the data has each in both orders."""
    pairs = friends("lastfm", root)
    assert len(pairs) == 25_434
    assert np.array_equal(np.unique(pairs[:, ::-1], axis=0), pairs)
