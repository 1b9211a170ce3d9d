"""A user's priors in Parquet files, and LastFM's trust network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from workloads.data import DataError, Interactions
from workloads.data.interactions.lightgcn import read_trust_network
from workloads.data.interactions.priors import read_prior

PAIRS = np.array([[0, 0], [1, 2]], np.int32)
NUMBERED = Interactions(2, 3, PAIRS, PAIRS[:0])
NAMED = Interactions(2, 3, PAIRS, PAIRS[:0], user_ids=np.array([10, 20]), item_ids=np.array([b"a", b"b", b"c"]))

NOT_UTF_8 = pa.array([b"a", b"\xff"]).view(pa.string())


def write(folder: Path, columns: dict[str, Any]) -> Path:
    parquet.write_table(pa.table(columns), folder / "prior.parquet")
    return folder / "prior.parquet"


def test_priors_of_items_and_of_pairs_are_read(tmp_path: Path) -> None:
    own = read_prior(write(tmp_path, {"item": [2, 0], "p": [0.5, 1.0]}), NUMBERED)
    assert own.users is None
    assert (own.items.tolist(), own.p.tolist()) == ([2, 0], [0.5, 1.0])
    own = read_prior(write(tmp_path, {"user": [20, 10], "item": ["c", "a"], "p": [0, 1]}), NAMED)
    assert own.users is not None
    assert (own.users.tolist(), own.items.tolist(), own.p.tolist()) == ([1, 0], [2, 0], [0.0, 1.0])


@pytest.mark.parametrize("users", [["20", "10"], [20.0, 10.0]])
def test_ids_of_another_type_are_compared_as_text(users: list[Any], tmp_path: Path) -> None:
    own = read_prior(write(tmp_path, {"user": users, "item": ["c", "a"], "p": [0.5, 1]}), NAMED)
    assert own.users is not None
    assert own.users.tolist() == [1, 0]
    named_none = Interactions(2, 3, PAIRS, PAIRS[:0], item_ids=np.array([b"None", b"1", b"2"]))
    assert read_prior(write(tmp_path, {"item": [1, 2], "p": [0.5, 1]}), named_none).items.tolist() == [1, 2]
    with pytest.raises(DataError, match="the dataset has no such item: got None"):
        read_prior(write(tmp_path, {"item": ["1", None], "p": [0.5, 1]}), named_none)


@pytest.mark.parametrize(
    ("columns", "line", "message"),
    [
        ({"item": pa.array([], pa.int64()), "p": pa.array([], pa.float64())}, None, "the prior is empty"),
        ({"item": [0], "q": [0.5]}, None, "the columns are wrong: got item, q; expected columns item and p"),
        ({"item": [0, 1], "p": [0.5, 1.5]}, 2, r"p is out of range: got 1.5; expected a p in \[0, 1\]"),
        ({"item": [0], "p": [-0.1]}, 1, "p is out of range: got -0.1"),
        ({"item": [0, 1], "p": [0.5, None]}, 2, "p is out of range: got nan"),
        ({"item": [0], "p": ["high"]}, None, "column p holds no numbers: got string"),
        ({"item": [0, 1], "p": [0, 2**60 + 1]}, 2, "p is out of range: got 1.15292e"),
        ({"item": pa.array([2**62], pa.timestamp("ms")), "p": [0.5]}, None, "column item holds a time out of range"),
        ({"item": NOT_UTF_8, "p": [0.5, 0.5]}, None, "Invalid UTF8 sequence"),
        ({"item": [0, 3], "p": [0.5, 0.5]}, 2, "the dataset has no such item: got 3"),
        ({"item": [0, None], "p": [0.5, 0.5]}, 2, "the dataset has no such item: got None"),
        ({"user": [0, 2], "item": [0, 0], "p": [0.5, 0.5]}, 2, "the dataset has no such user: got 2"),
        ({"item": [1, 0, 1], "p": [0.5, 0.5, 0.5]}, 3, "an item occurs twice"),
        ({"user": [0, 0], "item": [1, 1], "p": [0.5, 0.5]}, 2, "a pair of user and item occurs twice"),
    ],
)
def test_damaged_prior_is_refused(columns: dict[str, Any], line: int | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_prior(write(tmp_path, columns), NUMBERED)
    assert caught.value.line == line


def test_missing_or_non_parquet_prior_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the prior cannot be read"):
        read_prior(tmp_path / "none.parquet", NUMBERED)
    (tmp_path / "text.parquet").write_text("item,p")
    with pytest.raises(DataError, match="the prior is not Parquet"):
        read_prior(tmp_path / "text.parquet", NUMBERED)


def test_lastfm_trust_network_contains_both_orders_of_each_pair(tmp_path: Path) -> None:
    """Each order occurs once, and a pair of a user with itself is dropped."""
    (tmp_path / "trustnetwork.txt").write_text("1\t3\n3\t1\n2\t3\n5\t5\n")
    assert read_trust_network(tmp_path).tolist() == [[0, 2], [1, 2], [2, 0], [2, 1]]
    for wrong in ("1893", "9" * 5000, "1_0", "\u0661"):
        (tmp_path / "trustnetwork.txt").write_text(f"1\t3\n1\t{wrong}\n", "utf-8")
        with pytest.raises(DataError, match=r"line 2: the line is no pair of users: .* expected two users in 1..1892"):
            read_trust_network(tmp_path)
