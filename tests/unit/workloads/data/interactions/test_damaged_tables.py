"""Errors for damaged tables of a user: each names the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.workloads.data.interactions.own_tables import read
from workloads.data import DataError, check, check_readable, verify
from workloads.data.interactions import columns

NOT_UTF_8 = pa.array([b"a", b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, ("the columns are wrong", "user and item")),
        ("user,thing\n1,2\n", 1, ("the columns are wrong", "got 'user,thing'")),
        ("user;item\n1;2\n", 1, ("the columns are wrong", "separated by ';'")),
        ("user\titem\n1\t2\n", 1, (r"separated by '\t'",)),
        ("user,user_id,item\n1,2,3\n", 1, ("columns user and user_id both name the user", "Rename or remove one")),
        ("user, item,item\n1,2,3\n", 1, ("columns item and item both name the item",)),
        ("user,item,rating,Rating:float\n1,2,3,4\n", 1, ("columns rating and Rating:float both name the rating",)),
        ("1,2\n3,4\n", 1, ("the columns are wrong", "got '1,2'")),
        ("user,item\n", 1, ("is empty",)),
        ("user,item\n1,2\n1\n", 3, ("truncated", "got '1'", "2 fields")),
        ("user,item\n1,2\n1,2,3\n", 3, ("too many fields", "got '1,2,3'")),
        ("user,item\n1,2\n1,\n", 3, ("an id is missing in column item",)),
        ("user,item\n1,2\n,1\n", 3, ("an id is missing in column user",)),
        ("user,item\n1,2\n,\n", 3, ("an id is missing in column user",)),
        ("user,item\n\n\r\n", 1, ("is empty",)),
        ("user,item\n\n1,2\n\r\n,1\n", 5, ("an id is missing in column user",)),
        ("user,item\n\n1,2\n\r\n1\n", 5, ("truncated", "got '1'")),
        ('user,item,t\n\n1,2,a\n\n1,3,"b\n\nc"\n', 5, ("a quoted value spans lines",)),
        (f"user,item\n1,2\n{'x' * 256},1\n", 3, ("an id is too long in column user",)),
        ("user, item\n7,11\n7, 12\n", 3, ("an id has blanks around it in column item", "got ' 12'")),
        ("user,item\n7,11\nu1 ,12\n", 3, ("an id has blanks around it in column user", "got 'u1 '")),
        ("user,item,rating\n1,2,3\n2,2,good\n", 3, ("column rating holds no number", "got 'good'")),
        ("user,item,rating\n1,2,3\n2,2,\n", 3, ("column rating holds no number", "got ''")),
        ("user,item,rating\n1,2,3\n2,2,nan\n", 3, ("column rating holds no number", "got 'nan'", "finite")),
        ("user,item,rating\n1,2,3\n2,2,1e39\n", 3, ("column rating holds no number", "got '1e39'", "32 bits")),
        ("user,item,timestamp\n1,2,3\n2,2,noon\n", 3, ("column timestamp holds no whole number", "got 'noon'")),
        ("user,item,timestamp\n1,2,3.0\n2,2,3.5\n", 3, ("column timestamp holds no whole number", "got '3.5'")),
        ("user,item\r1,2\r2,3\r", 1, ("the first line cannot be read", "End the lines with LF or CR LF")),
        (f"user,item,{'x' * 200_000}\n1,2,3\n", 1, ("the first line cannot be read",)),
        ('user,item,t\n1,2,a\n1,3,"b\n7,8,c"\n', 3, ("a quoted value spans lines", "a row a line")),
        ('user,item,t\n1,2,a\n1,3,"b\nc"\n,4,d\n', 3, ("a quoted value spans lines",)),
        ('user,item,t\n1,2,a\n1,3,"b\n1,4,c\n1,5,d\n', 3, ("its quote is not closed",)),
        ('user,item,t\n,2,a\n1,3,"b\nc"\n', 2, ("an id is missing in column user",)),
    ],
)
def test_damaged_csv_table_is_refused_with_file_and_line(
    tmp_path: Path, text: str, line: int, words: tuple[str, ...]
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, all_csv=text)
    assert (caught.value.file, caught.value.line) == (tmp_path / "all.csv", line)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("block", [64, 2**22])
def test_unclosed_or_multiline_quote_is_refused_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """The check includes columns that are not read, and values that continue across blocks of the file."""
    monkeypatch.setattr(columns, "_BLOCK_BYTES", block)
    rows = "".join(f"{n}\t{n}\tFilm\n" for n in range(50))
    for title in ('"Crocodile', '"Crocodile\n8\t9\tDundee"'):
        with pytest.raises(DataError, match="a quoted value spans lines, or its quote is not closed") as caught:
            read(tmp_path, all_tsv=f"user\titem\ttitle\n{rows}7\t7\t{title}\n{rows}")
        assert caught.value.line == 52


@pytest.mark.parametrize("block", [16, 2**22])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_empty_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, end: str) -> None:
    monkeypatch.setattr(columns, "_BLOCK_BYTES", block)
    text = "user,item\n\n1,2\n" + "3,4\n" * 9 + "\n\n5,6\n\n\n"
    data = read(tmp_path, all_csv=text.replace("\n", end))
    np.testing.assert_array_equal(data.user_ids, [1, 3, 5])


def test_rows_with_quotes_within_a_line_are_read(tmp_path: Path) -> None:
    data = read(tmp_path, all_csv='user,item,title\n"a,b",1,"He said ""no"""\nc,2,5" pipe\nd,3,"x"')
    np.testing.assert_array_equal(data.user_ids, [b"a,b", b"c", b"d"])


def test_line_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"all.csv, line 3: the line is not UTF-8 text"):
        read(tmp_path, all_csv=b"user,item\n1,2\n\xff\xfe,3\n")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"user": [1.0, 2.0], "item": [1, 2]}, "column user holds neither integers nor text: got double"),
        ({"user": [True, False], "item": [1, 2]}, "column user holds neither integers nor text: got bool"),
        ({"user": [1, 2], "item": [1, None]}, "in row 2 an id is missing in column item"),
        ({"user": ["a", ""], "item": [1, 2]}, "in row 2 an id is missing in column user"),
        ({"user": ["a", "b "], "item": [1, 2]}, "in row 2 an id has blanks around it in column user: got 'b '"),
        ({"user": ["a", "a\0"], "item": [1, 2]}, r"in row 2 an id ends with a zero byte in column user: got 'a\\x00'"),
        ({"user": pa.array([1, 2**64 - 1], pa.uint64()), "item": [1, 2]}, "column user holds an id beyond 63 bits"),
        ({"user": [1, 2], "item": [1, 2], "rating": [1.0, None]}, "in row 2 column rating holds no number: got None"),
        ({"user": [1], "userId": [1], "item": [1]}, "all.parquet: columns user and userId both name the user"),
        ({"user": [1, 2], "thing": [1, 2]}, "the columns are wrong: got user, thing"),
        ({"user": NOT_UTF_8, "item": [1, 2]}, "Invalid UTF8 sequence"),
        (
            {"user": [1, 2], "item": [1, 2], "rating": NOT_UTF_8},
            "Invalid UTF8 sequence",
        ),
        ({"user": pa.array([], pa.int64()), "item": pa.array([], pa.int64())}, "is empty"),
    ],
)
def test_parquet_table_with_invalid_content_is_refused(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path, all_parquet=columns)
    assert caught.value.file == tmp_path / "all.parquet"


def test_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file is not Parquet, or is damaged"):
        read(tmp_path, all_parquet=b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match=r"damaged: got Parquet magic bytes not found in footer\.$"):
        read(tmp_path, all_parquet=b"user,item\n")


def test_uncompressed_file_named_gz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.csv.gz").write_bytes(b"user,item\n1,2\n")
    with pytest.raises(DataError, match=r"cannot be read.*cannot be decompressed"):
        check(str(tmp_path / "all.csv.gz"), tmp_path)


def test_parts_with_shared_pairs_or_different_id_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test.csv, line 3: a pair of the test part is also.*got user a, item y"):
        read(tmp_path, train_csv="user,item\na,x\na,y\n", test_csv="user,item\nb,x\na,y\n")
    with pytest.raises(
        DataError, match="the parts differ in column user: got large_string; expected int64, as in train"
    ):
        read(tmp_path, train_parquet={"user": [1], "item": [1]}, test_parquet={"user": ["1"], "item": [2]})


def test_parts_with_numbers_and_dates_as_times_are_refused(tmp_path: Path) -> None:
    numbers = {"user": [1], "item": [1], "timestamp": [1_704_067_200]}
    dates = {"user": [1], "item": [2], "timestamp": pa.array([1_704_067_300], pa.timestamp("s"))}
    with pytest.raises(
        DataError, match=r"the parts differ in column timestamp: got dates; expected numbers, as in train"
    ):
        read(tmp_path, train_parquet=numbers, test_parquet=dates)
    del numbers["timestamp"]
    assert read(tmp_path, train_parquet=numbers, test_parquet=dates).train_times is None


def test_check_readable_and_verify_report_a_truncated_line(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("user,item\n1,2\n1\n")
    with pytest.raises(DataError, match=r"line 3: the line is truncated.*Correct the file"):
        check_readable(str(path), tmp_path)
    (problem,) = verify(str(path), tmp_path)
    assert "line 3: the line is truncated" in problem
