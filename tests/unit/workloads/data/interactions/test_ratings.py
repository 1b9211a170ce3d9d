"""Reading of MovieLens-100K: every kind of damage is reported by file and line."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from workloads.data import DataError
from workloads.data.interactions.movielens import read_ml_100k

HEADER = "user,item,rating"
TRAIN = [HEADER, "0,528,4", "0,377,4", "1,5,3", "942,1681,1"]
TEST = [HEADER, "0,321,2", "1,7,5"]


def write(folder: Path, train: list[str] = TRAIN, test: list[str] = TEST) -> Path:
    (folder / "100k_train.csv").write_bytes("".join(f"{line}\r\n" for line in train).encode())
    (folder / "100k_test.csv").write_bytes("".join(f"{line}\r\n" for line in test).encode())
    return folder


def fault_of(folder: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read_ml_100k(folder)
    return caught.value


def test_movielens_100k_files_are_read(tmp_path: Path) -> None:
    data = read_ml_100k(write(tmp_path))
    assert (data.n_users, data.n_items, data.truth) == (943, 1682, None)
    np.testing.assert_array_equal(data.train, [[0, 528], [0, 377], [1, 5], [942, 1681]])
    np.testing.assert_array_equal(data.test, [[0, 321], [1, 7]])
    np.testing.assert_array_equal(data.train_ratings, [4, 4, 3, 1])
    np.testing.assert_array_equal(data.test_ratings, [2, 5])
    assert data.train.dtype == data.test.dtype == np.int32


def test_arrays_are_read_only(tmp_path: Path) -> None:
    data = read_ml_100k(write(tmp_path))
    with pytest.raises(ValueError, match="read-only"):
        data.train[0, 0] = 1


@pytest.mark.parametrize(
    ("line", "what", "got", "expected"),
    [
        ("942", "truncated", "'942'", "3 fields user,item,rating"),
        ("942,16", "truncated", "'942,16'", "3 fields"),
        ("", "truncated", "''", "3 fields"),
        ("1,2,3,4", "too many fields", "'1,2,3,4'", "3 fields"),
        ("nan,2,3", "NaN in column user", "'nan'", "an integer in 0..942"),
        (",2,3", "NaN in column user", "''", "an integer in 0..942"),
        ("1,NaN,3", "NaN in column item", "'NaN'", "an integer in 0..1681"),
        ("1,2,", "NaN in column rating", "''", "a rating in 1..5"),
        ("1,2,nan", "NaN in column rating", "'nan'", "a rating in 1..5"),
        ("1.0,2,3", "column user holds no integer", "'1.0'", "an integer"),
        ("1,2e1,3", "column item holds no integer", "'2e1'", "an integer"),
        ('"1",2,3', "column user holds no integer", "'\"1\"'", "an integer"),
        ("\N{ARABIC-INDIC DIGIT ONE},2,3", "column user holds no integer", "'\u0661'", "an integer"),
        ("-1,2,3", "negative id in column user", "'-1'", "0..942"),
        ("1,-2,3", "negative id in column item", "'-2'", "0..1681"),
        ("943,2,3", "out of range in column user", "'943'", "0..942"),
        ("1,1682,3", "out of range in column item", "'1682'", "0..1681"),
        ("1,99999999999999999999,3", "out of range in column item", "'99999999999999999999'", "0..1681"),
        (f"1,{'9' * 5000},3", "out of range in column item", f"'{'9' * 60}'", "0..1681"),
        ("1,2,0_4", "column rating holds no number", "'0_4'", "1..5"),
        ("1,2,0", "rating out of range", "'0'", "1..5"),
        ("1,2,5.5", "rating out of range", "'5.5'", "1..5"),
        ("1,2,inf", "rating out of range", "'inf'", "1..5"),
        ("1,2,good", "column rating holds no number", "'good'", "1..5"),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_damaged_line_is_refused_with_file_and_line(
    tmp_path: Path, part: str, line: str, what: str, got: str, expected: str
) -> None:
    lines = {"train": list(TRAIN), "test": list(TEST)}
    lines[part][2:2] = [line]
    fault = fault_of(write(tmp_path, **lines))
    assert fault.file == tmp_path / f"100k_{part}.csv"
    assert fault.line == 3
    assert what in fault.what
    assert fault.got == got
    assert fault.expected is not None
    assert expected in fault.expected
    assert str(fault).startswith(f"{fault.file}, line 3: ")


def test_error_names_the_first_damaged_line(tmp_path: Path) -> None:
    assert fault_of(write(tmp_path, [*TRAIN, "1,2,9", "1,3,3", "1,4,0"])).line == 6


def test_truncated_last_line_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "100k_train.csv"
    path.write_bytes(path.read_bytes()[:-5])
    fault = fault_of(tmp_path)
    assert (fault.line, fault.got) == (5, "'942,168'")


@pytest.mark.parametrize(
    "header", ["", "user,item", "item,user,rating", "user;item;rating", "0,1,2", "\ufeffuser,item,rating"]
)
def test_wrong_header_is_refused(tmp_path: Path, header: str) -> None:
    fault = fault_of(write(tmp_path, [header, *TRAIN[1:]]))
    assert (fault.line, fault.got, fault.expected) == (1, repr(header), HEADER)


def test_empty_file_and_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path) / "100k_train.csv"
    path.write_bytes(b"")
    assert fault_of(tmp_path).line == 1
    path.write_bytes(b"user,item,rating\r\n0,1,2\r\n\xff\x00,1,2\r\n")
    assert fault_of(tmp_path).line == 3


def test_pair_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    fault = fault_of(write(tmp_path, [*TRAIN, "9,9,1", "1,5,2", "0,528,4"]))
    assert fault.line == 7
    assert fault.got == "user 1, item 5 as in line 4"


def test_pair_in_train_and_test_is_refused(tmp_path: Path) -> None:
    fault = fault_of(write(tmp_path, TRAIN, [*TEST, "7,7,1", "1,5,3"]))
    assert (fault.file, fault.line) == (tmp_path / "100k_test.csv", 5)
    assert fault.got == "user 1, item 5 as in line 4 of 100k_train.csv"


def test_data_error_is_unchanged_after_pickling(tmp_path: Path) -> None:
    fault = fault_of(write(tmp_path, [HEADER, "1,2,9"]))
    copy = pickle.loads(pickle.dumps(fault.advise("Do this")))
    assert type(copy) is DataError
    assert (copy.file, copy.line, copy.fix) == (fault.file, 2, "Do this")
    assert str(copy) == f"{str(fault)[:-1]}. Do this."
