"""Rows from pipes and files, and predictions of several batches in one file."""

from __future__ import annotations

import codecs
import errno
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.models import validate_schema
from mlflow.types.schema import Array, ColSpec, DataType, Schema

from orchestrator.errors import UNAVAILABLE, RunFailed, UserError
from orchestrator.registry import tables
from orchestrator.registry.tables import STREAM, frames, output, typed

PAIRS = pd.DataFrame({"vector": [None, None], "similarity": np.array([0.5, 0.25], np.float32)})
SENTENCES = pd.DataFrame({"vector": [[1.0, 2.0]], "similarity": np.array([np.nan], np.float32)})


@pytest.mark.parametrize("batches", [[PAIRS, PAIRS, SENTENCES, PAIRS], [SENTENCES, PAIRS], [PAIRS, PAIRS]])
def test_the_first_value_of_a_column_may_come_in_any_batch(batches: list[pd.DataFrame], tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    with output(str(target)) as write:
        for batch in batches:
            write(batch)
    read = pd.read_parquet(target)
    given = pd.concat(batches, ignore_index=True)
    assert [None if one is None else list(one) for one in read["vector"]] == list(given["vector"])
    np.testing.assert_array_equal(read["similarity"], given["similarity"])


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_batches_with_different_columns_raise_and_leave_no_file(end: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{end}"

    def write_both() -> None:
        with output(str(target)) as write:
            write(SENTENCES[["vector"]])
            write(PAIRS[["similarity"]])

    with pytest.raises(RunFailed, match="after columns vector come similarity"):
        write_both()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_batches_with_columns_in_another_order_are_written_aligned(end: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{end}"
    with output(str(target)) as write:
        write(pd.DataFrame({"a": [1], "b": [2]}))
        write(pd.DataFrame({"b": [3], "a": [4]}))
    read = pd.read_parquet(target) if end == "parquet" else pd.read_csv(target)
    assert read.to_numpy().tolist() == [[1, 2], [4, 3]]


def test_typed_columns_are_written_before_all_column_types_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_UNTYPED", 3)
    target = tmp_path / "out.parquet"
    with output(str(target)) as write:
        for number in (1, float("nan"), 3, 4):
            write(pd.DataFrame({"reason": [None], "number": [number]}))
    read = pd.read_parquet(target)
    assert read["reason"].isna().all()
    assert read["number"].dropna().tolist() == [1, 3, 4]
    with pytest.raises(RunFailed, match="do not fit into one table"), output(str(target)) as write:
        _write(write, {"reason": [None], "number": [1]}, {"reason": [None], "number": ["one"]})


def _write(write: Callable[[pd.DataFrame], object], *rows: dict[str, list[Any]]) -> None:
    for row in rows:
        write(pd.DataFrame(row))


@pytest.mark.parametrize("end", ["parquet", "csv", "jsonl"])
def test_full_disk_raises_user_error_and_leaves_no_file(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: Full(path, "w"))
    full = pytest.raises(UserError, match="cannot be written: No space left")
    with full as raised, output(str(tmp_path / f"out.{end}")) as write:
        write(SENTENCES)
    assert raised.value.code == UNAVAILABLE
    assert not any(tmp_path.iterdir())


def test_categorical_columns_of_parquet_are_read_as_values(tmp_path: Path) -> None:
    given = pd.DataFrame({"text": ["a", "b", None], "id": [1, 2, 1], "at": pd.to_datetime(["2026-01-01"] * 3)})
    given.astype("category").to_parquet(tmp_path / "in.parquet")
    kinds = {"text": DataType.string, "id": DataType.long, "at": DataType.datetime}
    columns = [ColSpec(kind, name) for name, kind in kinds.items()]
    (read,) = frames(str(tmp_path / "in.parquet"), "in.parquet", columns)
    values = typed(read, columns, "in.parquet", 0)
    assert not any(isinstance(kind, pd.CategoricalDtype) for kind in values.dtypes)
    assert values["text"].dropna().tolist() == ["a", "b"]
    assert values["id"].tolist() == [1, 2, 1]
    assert values["at"].tolist() == given["at"].tolist()


@pytest.mark.parametrize("text", ["user\n7.0\n9007199254740993\n", "user\n-7.5e1\n-9007199254740993\n"])
def test_whole_numbers_that_were_read_as_floats_keep_their_digits_or_are_refused(tmp_path: Path, text: str) -> None:
    columns = [ColSpec(DataType.long, "user")]
    (tmp_path / "in.csv").write_text(text)
    (read,) = frames(str(tmp_path / "in.csv"), "in.csv", columns)
    with pytest.raises(
        UserError, match=r"Column user of in\.csv is wrong in row 2: got -?90071.*without decimal points"
    ):
        typed(read, columns, "in.csv", 0)
    (tmp_path / "in.csv").write_text("user\n9007199254740993\n")
    (read,) = frames(str(tmp_path / "in.csv"), "in.csv", columns)
    assert typed(read, columns, "in.csv", 0)["user"].tolist() == [2**53 + 1]


def test_json_lines_output_accepts_batches_with_different_columns(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with output(str(target)) as write:
        write(SENTENCES[["vector"]])
        write(PAIRS[["similarity"]])
    assert target.read_text() == '{"vector":[1.0,2.0]}\n{"similarity":0.5}\n{"similarity":0.25}\n'


class Pipe(io.RawIOBase):
    """A pipe whose parts arrive one after the other."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._parts.pop(0) if self._parts else b""
        buffer[: len(part)] = part
        return len(part)


def piped(monkeypatch: pytest.MonkeyPatch, *parts: bytes) -> list[dict[Any, Any]]:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(Pipe(*parts))))
    return [row for frame in frames(STREAM, "standard input", None) for row in frame.to_dict("records")]


def test_leading_blank_lines_of_a_pipe_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert piped(monkeypatch, b"\n", b" \r\n", b"a,b\n1,2\n") == [{"a": 1, "b": 2}]
    assert piped(monkeypatch, b"\n", b'{"a": 1}\n') == [{"a": 1}]
    assert piped(monkeypatch, b"\n", b"\n") == piped(monkeypatch) == []
    with pytest.raises(UserError, match="Line 5 of standard input is not a JSON object: got x"):
        piped(monkeypatch, b"\n\n", b"\n", b'{"a": 1}\nx\n')


def test_byte_order_mark_at_the_start_of_a_pipe_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert piped(monkeypatch, codecs.BOM_UTF8 + b'{"a": 1}\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]
    assert piped(monkeypatch, codecs.BOM_UTF8 + b"a\n1\n") == [{"a": 1}]


def test_closed_standard_input_raises_user_error_and_files_are_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match=r"^Standard input is closed\. Write the rows"):
        list(frames(STREAM, "standard input", None))
    (tmp_path / "in.csv").write_text("a\n1\n")
    (frame,) = frames(str(tmp_path / "in.csv"), "in.csv", None)
    assert frame["a"].tolist() == [1]


def test_blanks_around_csv_names_and_texts_are_stripped(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("note, user\n1, 07\n2,u2 \n3, \n")
    (frame,) = frames(str(tmp_path / "in.csv"), "in.csv", [ColSpec(DataType.string, "user")])
    assert frame["user"].tolist() == ["07", "u2", ""]
    (tmp_path / "in.csv").write_text("note,user\n1,\n")
    (frame,) = frames(str(tmp_path / "in.csv"), "in.csv", [ColSpec(DataType.string, "user")])
    assert frame["user"].isna().all()
    (tmp_path / "in.csv").write_text("user, user\n1,2\n")
    with pytest.raises(UserError, match="several columns are named user"):
        list(frames(str(tmp_path / "in.csv"), "in.csv", [ColSpec(DataType.string, "user")]))


@pytest.mark.parametrize("first", [0, 5])
def test_a_comma_at_the_end_of_rows_of_csv_does_not_shift_the_columns(first: int, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"user,item\n{first},7,\n{first + 1},7,\n")
    (frame,) = frames(str(tmp_path / "in.csv"), "in.csv", [ColSpec(DataType.long, "user")])
    assert frame["user"].tolist() == [first, first + 1]


@pytest.mark.parametrize("more", ["9", "9,11", ",11"])
def test_rows_of_csv_that_are_longer_than_the_header_are_refused(more: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"user,item\n5,7,{more}\n6,7,{more}\n")
    with pytest.raises(UserError, match=r"in\.csv cannot be read: its rows have more fields than its header has names"):
        list(frames(str(tmp_path / "in.csv"), "in.csv", [ColSpec(DataType.long, "user")]))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_all_rows_of_csv_are_read_across_batches(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 2)
    (tmp_path / "in.csv").write_text("user,item\n" + "".join(f"{row},7\n" for row in range(rows)))
    batches = list(frames(str(tmp_path / "in.csv"), "in.csv", [ColSpec(DataType.long, "user")]))
    assert all(len(frame) <= 2 for frame in batches)
    assert [user for frame in batches for user in frame["user"]] == list(range(rows))


@pytest.mark.parametrize("text", ["[1,2]", "7"])
def test_list_column_read_from_csv_raises_user_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "in.csv").write_text(f'history\n"{text}"\n')
    columns = [ColSpec(Array(DataType.long), "history")]
    (frame,) = frames(str(tmp_path / "in.csv"), "in.csv", columns)
    with pytest.raises(UserError, match=r"Column history of in\.csv holds lists, but row 9 has none: got.*Use Parquet"):
        typed(frame, columns, "in.csv", 8)


@pytest.mark.parametrize(
    ("kind", "elements", "got"),
    [
        (DataType.long, [1, None], r"\[1, None\]"),
        (DataType.long, np.array([1.0, np.nan]), r"\[1\.0, nan\]"),
        (DataType.long, [[1], [2]], r"\[\[1\], \[2\]\]"),
        (DataType.long, ["a"], r"\['a'\]"),
        (DataType.long, [True], r"\[True\]"),
        (DataType.long, [1.5], r"\[1\.5\]"),
        (DataType.double, [0.5, "a"], r"\[0\.5, 'a'\]"),
        (DataType.double, [{"a": 1}], r"\[\{'a': 1\}\]"),
        (DataType.string, ["sku1", None], r"\['sku1', None\]"),
        (DataType.string, np.array(["sku1", 7], object), r"\['sku1', 7\]"),
    ],
)
def test_invalid_list_element_raises_with_column_and_row(kind: DataType, elements: Any, got: str) -> None:
    frame = pd.DataFrame({"history": [[], None, elements]})
    word = {DataType.long: "a whole number", DataType.double: "a number", DataType.string: "text"}[kind]
    with pytest.raises(
        UserError, match=rf"^Column history of in is wrong in row 11: got {got}; allowed: a list.*{word}"
    ):
        typed(frame, [ColSpec(Array(kind), "history")], "in", 8)


@pytest.mark.parametrize(
    ("kind", "elements"),
    [
        (DataType.long, [1, 2]),
        (DataType.long, np.array([1, 2], np.int32)),
        (DataType.long, None),
        (DataType.double, [0.5, None]),
        (DataType.double, np.array([0.5, np.nan])),
        (DataType.string, np.array(["sku1", "s"])),
    ],
)
def test_lists_that_mlflow_takes_are_unchanged(kind: DataType, elements: Any) -> None:
    frame = typed(pd.DataFrame({"history": [elements, []]}), [ColSpec(Array(kind), "history")], "in", 0)
    np.testing.assert_equal(frame["history"].tolist(), [elements, []])
    if elements is not None:
        validate_schema(frame, Schema([ColSpec(Array(kind), "history")]))
