"""Formats of the interaction sources: their content is read, and damage is reported by file and line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads.data import DataError, Interactions
from workloads.data.interactions import yahoo
from workloads.data.interactions.lightgcn import read_item_lists, read_lastfm
from workloads.data.interactions.movielens import ML_1M, ML_100K_RAW
from workloads.data.interactions.yahoo import read_yahoo_r3

YAHOO_TRAIN, YAHOO_TEST = (f"ydata-ymusic-rating-study-v1_0-{part}.txt" for part in ("train", "test"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes files, given as name to content, to a folder and returns the folder."""

    def put(files: dict[str, str | bytes]) -> Path:
        for name, text in files.items():
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return put


def refused(read: Callable[[Path], Interactions], folder: Path, file: str, line: int | None, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(folder)
    assert (caught.value.file, caught.value.line) == (folder / file, line)
    for word in words:
        assert word in str(caught.value)


# MovieLens


def test_movielens_1m_ratings_are_read_with_times_and_ids(write: Callable[..., Path]) -> None:
    data = ML_1M.reader(write({"ratings.dat": "1::1193::5::978300760\n6040::3952::1::956703954\n"}))
    assert (data.n_users, data.n_items) == (6040, 3952)
    np.testing.assert_array_equal(data.train, [[0, 1192], [6039, 3951]])
    np.testing.assert_array_equal(data.train_ratings, [5, 1])
    np.testing.assert_array_equal(data.train_times, [978300760, 956703954])
    assert data.test.shape == (0, 2)
    assert data.user_ids is not None
    assert data.item_ids is not None
    assert (data.user_ids[6039], data.item_ids[1192]) == (6040, 1193)


def test_movielens_1m_table_without_times_is_read_if_ratings_dat_is_missing(write: Callable[..., Path]) -> None:
    """``ratings.csv`` has no times; it is read only if ``ratings.dat`` is missing."""
    folder = write({"ratings.csv": "user,movie,rating\n1,1193,5\n6040,3952,1\n"})
    data = ML_1M.reader(folder)
    np.testing.assert_array_equal(data.train, [[0, 1192], [6039, 3951]])
    assert data.train_times is None
    assert data.test_times is None
    (folder / "ratings.dat").write_text("1::1193::5::978300760\n")
    assert ML_1M.reader(folder).train_times is not None
    (folder / "ratings.dat").unlink()
    refused(ML_1M.reader, write({"ratings.csv": "user,movie,rating\n1,3953,5\n"}), "ratings.csv", 2, "column movie")


def test_an_id_without_a_rating_keeps_its_number(write: Callable[..., Path]) -> None:
    """Gaps in the ids are not closed, and an item without a rating is a candidate like any other."""
    data = ML_100K_RAW.reader(write({"u.data": "3\t5\t1\t1\n1\t9\t2\t1\n"}))
    assert (data.n_users, data.n_items) == (943, 1682)
    np.testing.assert_array_equal(data.train, [[2, 4], [0, 8]])


def test_gzip_compressed_rating_file_is_read(write: Callable[..., Path]) -> None:
    text = b"3\t5\t1\t1\n1\t9\t2\t1\n"
    data = ML_100K_RAW.reader(write({"u.data.gz": gzip.compress(text)}))
    np.testing.assert_array_equal(data.train, [[2, 4], [0, 8]])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1,2,3,4", ("truncated", "got '1,2,3,4'", "4 fields user::item::rating::timestamp")),
        ("1::2::3", ("truncated", "got '1::2::3'")),
        ("1::2::3::4::5", ("too many fields",)),
        ("", ("truncated", "got ''")),
        ("0::2::3::4", ("out of range in column user", "got '0'", "1..6040")),
        ("6041::2::3::4", ("out of range in column user",)),
        ("1::3953::3::4", ("out of range in column item", "1..3952")),
        ("1::2::6::4", ("a rating out of range", "got '6'", "1..5")),
        ("1::2::0::4", ("a rating out of range",)),
        ("1::2::nan::4", ("a NaN in column rating",)),
        ("one::2::3::4", ("column user holds no integer", "got 'one'")),
        ("1::2.5::3::4", ("column item holds no integer", "got '2.5'")),
        ("1::2::3::noon", ("column timestamp holds no integer", "got 'noon'", "seconds since 1970")),
        ("1::9::3::9", ("a pair occurs twice", "user 1, item 9 as in line 1")),
    ],
)
def test_damaged_line_of_movielens_is_refused(write: Callable[..., Path], line: str, words: tuple[str, ...]) -> None:
    folder = write({"ratings.dat": f"1::9::4::5\n{line}\n2::9::4::5\n"})
    refused(ML_1M.reader, folder, "ratings.dat", 2, *words)


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_empty_rating_file_is_refused(write: Callable[..., Path], text: str) -> None:
    refused(ML_1M.reader, write({"ratings.dat": text}), "ratings.dat", 1, "is empty")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("1|24|M|technician|85711\n3|23|M|writer|32067\n", 2, "the first of them 2"),
        ("1|24|M|technician\n", 1, "5 fields"),
        ("1|24|M|technician|85711\n", None, "not complete: got 1 users; expected 943 users"),
    ],
)
def test_damaged_or_incomplete_user_file_is_refused(
    write: Callable[..., Path], text: str, line: int | None, what: str
) -> None:
    assert ML_100K_RAW.occupations is not None
    refused(ML_100K_RAW.occupations, write({"u.user": text}), "u.user", line, what)


def test_occupations_of_movielens_1m_are_read_from_users_dat(write: Callable[..., Path]) -> None:
    codes = [user % 7 for user in range(1, 6041)]
    folder = write({"users.dat": "".join(f"{user}::F::1::{codes[user - 1]}::48067\n" for user in range(1, 6041))})
    assert ML_1M.occupations is not None
    np.testing.assert_array_equal(ML_1M.occupations(folder), codes)


# Yahoo!-R3


@pytest.fixture
def five_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a train file of four rows and a test file of three rows count as complete."""
    monkeypatch.setattr(yahoo, "_ROWS", {"train": 4, "test": 3})


@pytest.mark.usefixtures("five_rows")
def test_yahoo_r3_keeps_only_the_first_5400_users(write: Callable[..., Path]) -> None:
    train = "1\t14\t5\n5400\t1000\t1\n5401\t3\t5\n15400\t3\t5\n"
    data = read_yahoo_r3(write({YAHOO_TRAIN: train, YAHOO_TEST: "1\t15\t3\n1\t14\t5\n5400\t2\t2\n"}))
    assert (data.n_users, data.n_items) == (5400, 1000)
    np.testing.assert_array_equal(data.train, [[0, 13], [5399, 999]])
    np.testing.assert_array_equal(data.test, [[0, 14], [5399, 1]])  # (1, 14) is in train
    np.testing.assert_array_equal(data.test_ratings, [3, 2])


@pytest.mark.usefixtures("five_rows")
@pytest.mark.parametrize(
    ("file", "text", "line", "what"),
    [
        (YAHOO_TRAIN, "1\t14\t5\n1 15 5\n2\t3\t4\n3\t3\t3\n", 2, "truncated"),
        (YAHOO_TRAIN, "1\t14\t5\n", None, "not complete: got 1 rows; expected 4 rows"),
        (YAHOO_TEST, "1\t15\t3\n2\t1001\t5\n3\t3\t3\n", 2, "out of range in column song"),
        (YAHOO_TEST, "1\t15\t3\n5401\t1\t5\n3\t3\t3\n", 2, "out of range in column user"),
        (YAHOO_TEST, "1\t15\t3\n2\t1\t9\n3\t3\t3\n", 2, "a rating out of range"),
    ],
)
def test_damaged_or_incomplete_yahoo_file_is_refused(
    write: Callable[..., Path], file: str, text: str, line: int | None, what: str
) -> None:
    whole = {YAHOO_TRAIN: "1\t14\t5\n2\t14\t5\n3\t14\t5\n4\t14\t5\n", YAHOO_TEST: "1\t1\t1\n2\t1\t1\n3\t1\t1\n"}
    refused(read_yahoo_r3, write({**whole, file: text}), file, line, what)


# LastFM


def test_lastfm_pairs_are_read_without_play_counts(write: Callable[..., Path]) -> None:
    data = read_lastfm(write({"data1.txt": "1\t4489\t993\r\n1892\t1\t3.2466e+05\r\n", "test1.txt": "5\t6\t7\n"}))
    assert (data.n_users, data.n_items) == (1892, 4489)
    np.testing.assert_array_equal(data.train, [[0, 4488], [1891, 0]])
    np.testing.assert_array_equal(data.test, [[4, 5]])  # a user who is only in test
    assert data.train_ratings is None


def test_lastfm_pair_in_both_parts_or_negative_play_count_is_refused(write: Callable[..., Path]) -> None:
    folder = write({"data1.txt": "1\t2\t3\n4\t5\t6\n", "test1.txt": "7\t8\t9\n4\t5\t1\n"})
    refused(read_lastfm, folder, "test1.txt", 2, "user 4, item 5 as in line 2 of data1.txt")
    write({"test1.txt": "7\t8\t-1\n"})
    refused(read_lastfm, folder, "test1.txt", 1, "a playcount out of range")


# Lists of items


def lists(train: str, test: str = "0 1\n") -> dict[str, str]:
    return {"train.txt": train, "test.txt": test}


def test_line_of_an_item_list_is_read_as_a_user_and_its_items(write: Callable[..., Path]) -> None:
    data = read_item_lists(write(lists("0 5 3\n2 4 \r\n3\n\n3 0", "1 1\n0 2")))
    assert (data.n_users, data.n_items) == (4, 6)
    np.testing.assert_array_equal(data.train, [[0, 3], [0, 5], [2, 4], [3, 0]])
    np.testing.assert_array_equal(data.test, [[0, 2], [1, 1]])
    assert data.train.dtype == data.test.dtype == np.int32
    assert data.user_ids is data.item_ids is None


def test_gaps_in_the_ids_of_lists_are_closed(write: Callable[..., Path]) -> None:
    """Otherwise items that do not exist would be candidates and negatives."""
    data = read_item_lists(write(lists("1 500 300\n20 300\n3\n", "20 999999999\n5 500\n")))
    assert (data.n_users, data.n_items) == (3, 3)  # user 3 has no interaction
    np.testing.assert_array_equal(data.user_ids, [1, 5, 20])
    np.testing.assert_array_equal(data.item_ids, [300, 500, 999_999_999])
    np.testing.assert_array_equal(data.train, [[0, 0], [0, 1], [2, 0]])
    np.testing.assert_array_equal(data.test, [[1, 1], [2, 2]])


def test_duplicate_pairs_of_lists_are_kept_once_and_in_train(write: Callable[..., Path]) -> None:
    data = read_item_lists(write(lists("0 2 1 2\n1 0\n0 1\n", "0 1 3 3\n1 1\n")))
    np.testing.assert_array_equal(data.train, [[0, 1], [0, 2], [1, 0]])
    np.testing.assert_array_equal(data.test, [[0, 3], [1, 1]])


def test_given_sizes_are_kept_although_the_last_ids_do_not_occur(write: Callable[..., Path]) -> None:
    data = read_item_lists(write(lists("0 1\n", "0 2\n")), sizes=(10, 20))
    assert (data.n_users, data.n_items) == (10, 20)
    assert data.user_ids is data.item_ids is None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("0 1 2\n1,2,3\n", 2, ("something else than integers", "got ',2,3'", "user item item ...")),
        ("0 1\n1 x2\n", 2, ("got 'x2'",)),
        ("0 1\n1 -2\n", 2, ("got '-2'",)),
        ("0 1\n\n1 2.5\n", 3, ("got '.5'",)),
        ("0 1\n1 99999999999\n", 2, ("out of range", "got '99999999999'")),
        ("0 1\n1 20\n", 2, ("out of range", "got '20'", "items below 20")),
        ("0 1\n10 2\n", 2, ("out of range", "got '10'", "users below 10")),
        ("", 1, ("is empty",)),
        ("\n \n", 1, ("is empty",)),
        ("0\n1\n", 1, ("is empty",)),
    ],
)
@pytest.mark.parametrize("part", ["train.txt", "test.txt"])
def test_damaged_item_list_is_refused(
    write: Callable[..., Path], part: str, text: str, line: int, words: tuple[str, ...]
) -> None:
    folder = write({**lists("0 1\n"), part: text})
    refused(lambda place: read_item_lists(place, sizes=(10, 20)), folder, part, line, *words)


@pytest.mark.parametrize("text", ["0 12 5\n0 14 3\n1 12 4\n", "0 1193 5 978300760\n0 661 3 978302109\n"])
def test_ratings_in_place_of_item_lists_are_refused(write: Callable[..., Path], text: str) -> None:
    refused(read_item_lists, write(lists(text)), "train.txt", 1, "look like user, item, rating", ".tsv")
    assert len(read_item_lists(write(lists("0 12 5\n2 14 3\n1 12 4\n"))).train) == 6


def test_ids_that_begin_with_0_are_refused_in_own_item_lists(write: Callable[..., Path]) -> None:
    """``07`` and ``7`` would be one id."""
    refused(read_item_lists, write(lists("0 7\n1 07\n")), "train.txt", 2, "an id begins with 0", "got '07'")


def test_lines_that_end_with_cr_alone_are_refused(write: Callable[..., Path]) -> None:
    refused(read_item_lists, write(lists("0 1 2\r1 3\r")), "train.txt", 1, "CR alone", "LF")


def test_incomplete_item_list_is_refused(write: Callable[..., Path]) -> None:
    folder = write(lists("0 1 2\n1 2\n"))
    words = "not complete: got 3 interactions; expected 4"
    refused(lambda place: read_item_lists(place, (2, 3), (4, 1)), folder, "train.txt", None, words)
