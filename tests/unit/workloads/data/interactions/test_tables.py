"""A user's own tables by path: any ids, CSV or Parquet."""

from __future__ import annotations

import csv
import datetime
import errno
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as pa_csv
from pyarrow import parquet

from tests.unit.workloads.data.interactions.own_tables import read
from workloads.data import (
    CacheUnwritable,
    DataError,
    Interactions,
    absolute,
    check,
    check_readable,
    dataset,
    fetch,
    fingerprint,
    load_interactions,
    partition,
    verify,
)
from workloads.data.interactions import columns
from workloads.data.interactions.tables import read_tables
from workloads.data.interactions.variants import Split, rated_from, resplit, with_noise

ROWS = "user,item,rating,timestamp\n7,b,3,10\n9,a,4.5,20\n7,a,1,30\n"


def named(data: Interactions) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The pairs of train and test, with the ids of the source."""
    users, items = (
        [str(number) for number in range(count)] if ids is None
        else [name.decode() if isinstance(name, bytes) else str(name) for name in ids.tolist()]
        for ids, count in ((data.user_ids, data.n_users), (data.item_ids, data.n_items))
    )  # fmt: skip
    train, test = ({(users[user], items[item]) for user, item in part} for part in (data.train, data.test))
    return train, test


# Content of tables


def test_csv_table_is_read_with_ids_ratings_and_times(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv=ROWS)
    assert (data.n_users, data.n_items) == (2, 2)
    np.testing.assert_array_equal(data.train, [[0, 1], [1, 0], [0, 0]])
    np.testing.assert_array_equal(data.train_ratings, np.float32([3, 4.5, 1]))
    np.testing.assert_array_equal(data.train_times, [10, 20, 30])
    np.testing.assert_array_equal(data.user_ids, [7, 9])
    np.testing.assert_array_equal(data.item_ids, [b"a", b"b"])
    assert data.test.shape == (0, 2)
    assert data.test_ratings is not None
    assert data.test_times is not None
    assert data.train.dtype == np.int32


@pytest.mark.parametrize(
    "files",
    [
        {"all_csv": "timestamp,Item_ID,UserId,note,rating\n10,b,7,x,3\n20,a,9,y,4.5\n30,a,7,z,1\n"},
        {"all_csv": "userId,movieId" + ROWS.removeprefix("user,item")},  # MovieLens
        {"all_csv": "user_id:token,item_id:token,rating:float,timestamp:float" + ROWS[ROWS.index("\n") :]},  # RecBole
        {"all_tsv": ROWS.replace(",", "\t")},
        {"all_csv_gz": gzip.compress(ROWS.encode())},
        {"all_csv": ROWS.replace("0\n", "0.0\n")},
        {"all_csv": "\ufeff" + ROWS.replace("\n", "\r\n")},
        {"all_csv": '"user","item","rating","timestamp"\n"7","b",3,10\n"9","a",4.5,20\n"7","a",1,30\n'},
        {"all_parquet": {"user": [7, 9, 7], "item": ["b", "a", "a"], "rating": [3, 4.5, 1], "timestamp": [10, 20, 30]}},
        {
            "all_parquet": {
                "user": [7, 9, 7],
                "item": pa.array(["b", "a", "a"], pa.string_view()),
                "rating": [3, 4.5, 1],
                "timestamp": [10, 20, 30],
            }
        },
        {
            "all_parquet": {
                "rating": pa.array([3, 4.5, 1], pa.float32()),
                "user": pa.array([7, 9, 7], pa.uint16()),
                "item": pa.array(["b", "a", "a"]).dictionary_encode(),
                "timestamp": pa.array([10, 20, 30], pa.int32()),
            }
        },
    ],
)
def test_every_table_format_gives_the_same_arrays(tmp_path: Path, files: dict[str, Any]) -> None:
    expected, found = read(tmp_path, all_csv=ROWS), read(tmp_path, **files)
    assert found.arrays().keys() == expected.arrays().keys()
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], array, strict=True)


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns")])
def test_times_of_parquet_are_read_in_microseconds(tmp_path: Path, kind: pa.DataType) -> None:
    moments = [datetime.datetime(2024, 1, 1, 0, 0, 0, part, datetime.UTC) for part in (900_000, 500_000, 100_000)]
    times = pa.array(moments, pa.timestamp("us", "UTC")).cast(kind)
    data = read(tmp_path, all_parquet={"user": [0, 0, 0], "item": [0, 1, 2], "timestamp": times})
    np.testing.assert_array_equal(data.train_times, [1_704_067_200_000_000 + moment.microsecond for moment in moments])
    np.testing.assert_array_equal(resplit(data, "leave_last_out").test, [[0, 0]])


pairs = st.tuples(
    st.integers(-3, 8), st.text("ab,\"é '7", min_size=1, max_size=3).filter(lambda text: text == text.strip())
)


@given(st.lists(pairs, min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_pairs_are_independent_of_the_order_of_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]], random: Any
) -> None:
    def written(rows: list[tuple[int, str]]) -> Interactions:
        folder = tmp_path_factory.mktemp("own")
        with (folder / "all.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("user", "item"), *rows])
        return read_tables(folder, ("all.csv",))

    data = written(rows)
    assert named(data)[0] == {(str(user), item) for user, item in rows}
    assert len(data.train) == len(set(rows))
    random.shuffle(rows)
    again = written(rows)
    assert {*map(tuple, again.train.tolist())} == {*map(tuple, data.train.tolist())}


@pytest.mark.parametrize("end", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("text", [True, False])
def test_table_read_in_blocks_has_the_same_arrays_and_splits(
    tmp_path: Path, end: str, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits on rows and bytes in memory do not affect random splits, splits by time or noise either."""
    source = np.random.default_rng(0)
    pairs = source.integers(0, 60, (3000, 2))
    ids = [f"u{user}" for user in pairs[:, 0]] if text else pairs[:, 0].tolist()
    table = pa.table(
        {
            "user": ids,
            "item": pairs[:, 1].tolist(),
            "rating": source.integers(-2, 3, 3000) / 2,
            "timestamp": source.integers(-900, 900, 3000),
        }
    )
    if end == "parquet":
        parquet.write_table(table, tmp_path / "all.parquet", row_group_size=700)
    else:
        written = pa.BufferOutputStream()
        pa_csv.write_csv(table, written)
        content = written.getvalue().to_pybytes()
        (tmp_path / f"all.{end}").write_bytes(gzip.compress(content) if end == "csv.gz" else content)
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    splits: tuple[Split, ...] = ("official", "clean", "leave_last_out", "global_time")

    def variants() -> Iterator[Interactions]:
        data = read_tables(tmp_path, (f"all.{end}",))
        for split in splits:
            yield resplit(data, split)
            yield with_noise(resplit(data, split), 0.2)
        yield resplit(resplit(data, "clean"), "random")  # of a dataset with two parts

    whole = [*variants()]
    for module, name, value in (
        (columns, "_BLOCK_BYTES", 2000),
        (columns, "_BLOCK_ROWS", 90),
        (partition, "ROWS", 100),
        (partition, "IN_MEMORY", 0),
    ):
        monkeypatch.setattr(module, name, value)
    blocks = [len(rows.user) for rows in columns.read_columns(tmp_path / f"all.{end}")]
    assert sum(blocks) == 3000
    assert max(blocks) < 200
    for found, expected in zip(variants(), whole, strict=True):
        assert found.arrays().keys() == expected.arrays().keys()
        for name, array in expected.arrays().items():
            np.testing.assert_array_equal(found.arrays()[name], array, strict=True)


@pytest.mark.parametrize("other", ["train.parquet", "test.tsv.gz", "train.txt"])
def test_part_in_two_forms_is_refused(tmp_path: Path, other: str) -> None:
    for name in ("train.csv", "test.csv", other):
        (tmp_path / name).write_text("user,item\n1,2\n")
    with pytest.raises(DataError, match=r"a part is in several files: got .*\. Keep one of them") as caught:
        dataset(str(tmp_path))
    assert other in str(caught.value)
    (tmp_path / other).rename(tmp_path / "train.csv.gz")  # a compressed copy, which is not read
    assert [file.path for file in dataset(str(tmp_path)).files] == ["train.csv", "test.csv"]


def test_an_error_in_a_later_block_names_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 100)
    rows = "".join(f"{n},{n}\n" for n in range(500))
    for line, words in (("7", "truncated"), (",7", "an id is missing in column user"), ("\udcff,7", "not UTF-8")):
        with pytest.raises(DataError, match=words) as caught:
            read(tmp_path, all_csv=f"user,item\n{rows}{line}\n{rows}".encode(errors="surrogateescape"))
        assert caught.value.line == 502


def test_full_disk_raises_cache_unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(partition, "IN_MEMORY", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    (tmp_path / "all.csv").write_text(ROWS)
    with pytest.raises(CacheUnwritable, match=r"\(No space left on device\)\. Free space, or set ORCHESTRATOR_CACHE"):
        load_interactions(str(tmp_path / "all.csv"), tmp_path)


def test_ids_with_leading_zeros_are_text(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv="user,item\n007,1\n7,1\n")
    np.testing.assert_array_equal(data.user_ids, [b"007", b"7"])
    assert data.n_users == 2


@pytest.mark.parametrize(
    "files",
    [
        {"all_csv": "user,item\n7.0,a\n-1.0,b\n"},
        {"all_csv": "user,item\n7,a\n7.0,b\n"},
        {"all_parquet": {"user": ["7.0"], "item": [1]}},
    ],
)
def test_float_ids_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    """Otherwise a served model would have a user 7.0 and not 7."""
    with pytest.raises(DataError, match=r"column user holds floats: got '7\.0'; expected integers or text\. Convert"):
        read(tmp_path, **files)


def test_decimal_ids_that_are_not_all_whole_are_kept_as_text(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv="user,item\n7.0,1\n7.1,1\n")
    np.testing.assert_array_equal(data.user_ids, [b"7.0", b"7.1"])


def test_integer_ids_are_sorted_numerically_and_numbered_without_gaps(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv="user,item\n10,5\n9,100\n-1,5\n")
    np.testing.assert_array_equal(data.user_ids, [-1, 9, 10])
    np.testing.assert_array_equal(data.item_ids, [5, 100])
    np.testing.assert_array_equal(data.train, [[2, 0], [1, 1], [0, 0]])


def test_consecutive_ids_from_0_are_not_stored(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv="user,item\n1,0\n0,1\n")
    assert data.user_ids is None
    assert data.item_ids is None
    np.testing.assert_array_equal(data.train, [[1, 0], [0, 1]])


def test_last_row_of_a_repeated_pair_is_kept(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv="user,item,rating\n1,1,5\n0,0,2\n1,1,3\n")
    np.testing.assert_array_equal(data.train, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(data.train_ratings, [2, 3])


@pytest.mark.parametrize("rows", [2**20, 1], ids=["whole", "user by user"])
def test_latest_row_of_a_repeated_pair_with_times_is_kept(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest row need not be the last one. Of two rows with equal times, the last one in the file is kept."""
    monkeypatch.setattr(partition, "ROWS", rows)
    data = read(tmp_path, all_csv="user,item,rating,timestamp\n1,1,5,99\n0,0,2,7\n1,1,3,10\n0,0,4,7\n1,0,1,-3\n")
    np.testing.assert_array_equal(data.train, [[1, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(data.train_ratings, [5, 4, 1])
    np.testing.assert_array_equal(data.train_times, [99, 7, -3])


def test_a_user_and_an_item_that_are_only_in_test_have_numbers(tmp_path: Path) -> None:
    data = read(tmp_path, train_csv="user,item,rating\na,x,1\n", test_csv="user,item\nb,y\na,y\n")
    assert (data.n_users, data.n_items) == (2, 2)
    assert named(data) == ({("a", "x")}, {("b", "y"), ("a", "y")})
    assert data.train_ratings is None  # test has no ratings


def test_ratings_and_times_of_one_part_only_do_not_suffice(tmp_path: Path) -> None:
    data = read(tmp_path, train_csv="user,item,rating,timestamp\na,x,1,5\n", test_csv="user,item\na,y\n")
    with pytest.raises(DataError, match="take a dataset with ratings in train and test"):
        rated_from(data, 1)
    for split, needed in (("clean", "what is liked, in"), ("global_time", "timestamps in")):
        with pytest.raises(DataError, match=f"the dataset has none; expected .*{needed} train and test"):
            resplit(data, split)  # type: ignore[arg-type]


def test_tables_with_too_few_rows_for_validation_or_test_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("user,item\n" + "".join(f"{n},{n}\n" for n in range(9)))
    with pytest.raises(DataError, match=r"all\.csv: no user can give an item for validation: got at most 1"):
        check_readable(str(path), tmp_path)
    path.write_text("user,item\n" + "".join(f"1,{n}\n" for n in range(4)))
    check_readable(str(path), tmp_path)
    path.write_text("user,item\n1,1\n")
    with pytest.raises(DataError, match=r"all\.csv: the test part is empty"):
        check_readable(str(path), tmp_path)


# Datasets by path


def test_csv_file_is_loaded_as_a_dataset_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "clicks of mine.csv"
    path.write_text("user,item\n" + "".join(f"u{n % 5},i{n}\n" for n in range(50)))
    check(str(path), tmp_path / "elsewhere")
    check_readable(str(path), tmp_path / "elsewhere")
    assert verify(str(path), tmp_path) == fetch(str(path), tmp_path) == []
    data = load_interactions(str(path), tmp_path)
    assert (len(data.train), len(data.test)) == (40, 10)  # it has no split of its own
    assert data.user_ids is not None
    assert data.user_ids.tolist() == [b"u0", b"u1", b"u2", b"u3", b"u4"]
    before = fingerprint(str(path), tmp_path)
    path.write_text("user,item\n" + "".join(f"u{n % 5},i{n}\n" for n in range(40)))
    assert fingerprint(str(path), tmp_path) != before
    assert load_interactions(str(path), tmp_path).n_items == 40


@pytest.mark.parametrize("name", ["valid.csv", "validation.parquet", "val.txt", "dev.tsv.gz"])
def test_folder_with_a_validation_part_is_refused(tmp_path: Path, name: str) -> None:
    for part in ("train.csv", "test.csv", name):
        (tmp_path / part).write_text("user,item\n")
    with pytest.raises(DataError, match=rf"{name}: a validation part is not read from.*its rows to the train"):
        dataset(str(tmp_path))


@pytest.mark.parametrize("end", ["csv", "tsv", "parquet", "txt"])
def test_a_folder_with_two_parts_is_a_dataset(tmp_path: Path, end: str) -> None:
    for part, item in (("train", 1), ("test", 0)):
        if end == "parquet":
            parquet.write_table(pa.table({"user": [0], "item": [item]}), tmp_path / f"{part}.parquet")
        else:
            mark = {"csv": ",", "tsv": "\t", "txt": " "}[end]
            header = "" if end == "txt" else f"user{mark}item\n"
            (tmp_path / f"{part}.{end}").write_text(f"{header}0{mark}{item}\n")
    data = load_interactions(str(tmp_path), tmp_path)
    np.testing.assert_array_equal(data.train, [[0, 1]])
    np.testing.assert_array_equal(data.test, [[0, 0]])


def test_relative_path_is_made_absolute_by_absolute_and_refused_by_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("mine/all.csv") == str(tmp_path / "mine" / "all.csv")
    assert absolute("all.parquet") == str(tmp_path / "all.parquet")
    assert absolute("~/all.csv") == str(Path.home() / "all.csv")
    assert absolute("ml-100k") == "ml-100k"
    with pytest.raises(DataError, match=f"must be absolute.*Use {tmp_path}/all.csv"):
        dataset("all.csv")


def test_path_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.csv: the file of dataset .* is missing.*Correct"):
        check(str(tmp_path / "none.csv"), tmp_path)
    with pytest.raises(DataError, match=r"none: there is nothing at this path\. Correct the path"):
        dataset(str(tmp_path / "none"))
    (tmp_path / "notes").touch()
    with pytest.raises(DataError, match=r"there is no dataset.*\.parquet, \.csv"):
        dataset(str(tmp_path / "notes"))
    (tmp_path / "train.csv").touch()
    with pytest.raises(DataError, match="does not hold the parts of a dataset; expected train and test"):
        dataset(str(tmp_path))
