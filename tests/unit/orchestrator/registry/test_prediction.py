"""Inputs and parameters of ``predict``: refusals, batches, and the summary of abstention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models.utils import _enforce_schema
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.types import ColSpec, DataType, ParamSpec, Schema
from mlflow.types.schema import Array
from requests import ConnectionError, HTTPError

from orchestrator.errors import UNAVAILABLE, USAGE, UserError
from orchestrator.registry import models as registry
from orchestrator.registry import prediction, tables
from orchestrator.registry.abstention import Summary
from orchestrator.registry.prediction import _whole_lists, check_params
from orchestrator.registry.tables import typed
from orchestrator.storage.settings import resolve

K, SHARES = ParamSpec("k", DataType.long, 10), ParamSpec("shares", DataType.double, [0.5], shape=(-1,))


@pytest.mark.parametrize(
    ("spec", "given", "words"),
    [
        ([K], {"k": "abc"}, "Parameter k of rec/1 is not valid: got 'abc'; allowed: a whole number."),
        ([SHARES], {"shares": ["x"]}, "Parameter shares of rec/1 is not valid: got ['x']; allowed: a list, each a"),
        ([K], {"kk": 1}, "Unknown parameter of rec/1: got 'kk'; allowed: k. Did you mean 'k'?"),
        ([], {"k": 5}, "rec/1 takes no parameters: got k=5. Leave it out."),
        ([K], {"risk": 0.1}, "rec/1 promises no risk: no queries were held out of its training: got risk=0.1. Train"),
        (None, {"k": 5}, "rec/1 takes no parameters: got k=5. Leave it out."),
    ],
)  # fmt: skip
def test_invalid_predict_parameters_raise_user_error(spec: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        check_params("rec/1", spec, given)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (DataType.long, "x", "got 'x'; allowed: a whole number."),
        (DataType.double, "x", "got 'x'; allowed: a number."),
        (DataType.string, 5, "got 5; allowed: text."),
        (DataType.datetime, "soon", "got 'soon'; allowed: a date, or a date and time, as 2024-05-01T12:00."),
        (DataType.binary, "?", "got '?'; allowed: bytes, or base64 text."),
    ],
)
def test_invalid_column_value_raises_with_column_row_and_allowed_type(kind: DataType, value: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        typed(pd.DataFrame({"a": [value]}, dtype=object), [ColSpec(kind, "a")], "in.csv", 0)
    assert str(caught.value) == f"Column a of in.csv is wrong in row 1: {words}"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lists_are_not_cut_at_the_end_of_a_batch(size: int) -> None:
    columns = [ColSpec(DataType.string, name) for name in ("query", "document")]
    whole = pd.DataFrame({"query": list("aabbbbbcd"), "document": [str(row) for row in range(9)]})
    batches = [whole.iloc[first : first + size].reset_index(drop=True) for first in range(0, 9, size)]
    cut = list(_whole_lists(iter(batches), columns))
    pd.testing.assert_frame_equal(pd.concat(cut, ignore_index=True), whole)
    assert sum(batch["query"].nunique() for batch in cut) == 4
    alone = [ColSpec(DataType.string, "query")]  # no lists: batches stay as they are
    assert [len(batch) for batch in _whole_lists(iter(batches), alone)] == [len(batch) for batch in batches]


def test_interleaved_rows_of_a_query_are_in_one_batch_or_refused() -> None:
    columns = [ColSpec(DataType.string, name) for name in ("query", "document")]

    def cut(*queries: str) -> list[str]:
        batches = (pd.DataFrame({"query": list(text), "document": list(text)}) for text in queries)
        return ["".join(batch["query"]) for batch in _whole_lists(batches, columns)]

    assert cut("abacc") == ["aba", "cc"]
    assert cut("aba", "bcd", "dde") == ["ababc", "ddd", "e"]
    with pytest.raises(UserError, match=r"those of one are far apart in the input: got 'a'\. Sort the input by query"):
        cut("ab", "bc", "ca")


def test_unreachable_registry_raises_unavailable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    away = MlflowException("API request to http://mlflow failed with exception: too many 503 error responses")
    monkeypatch.setattr(registry, "client", Mock(**{"return_value.search_model_versions.side_effect": away}))
    with pytest.raises(UserError, match=r"rec@champion cannot be fetched: .* too many 503 error") as caught:
        prediction.load(Mock(), "rec@champion")
    assert caught.value.code == UNAVAILABLE


FILES = "The following failures occurred while downloading one or more artifacts from http://mlflow:\n## File a ##\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MlflowException("API request failed with exception: too many 503 error responses"), UNAVAILABLE),
        (MlflowException(f"{FILES}API request failed with exception: too many 503 error responses"), UNAVAILABLE),
        (HTTPError(response=Mock(status_code=503)), UNAVAILABLE),
        (ConnectionError("refused"), UNAVAILABLE),
        (MlflowException(f"{FILES}404 Client Error: Not Found"), USAGE),
        (MlflowException("No such artifact: ''", error_code=RESOURCE_DOES_NOT_EXIST), USAGE),
        (HTTPError(response=Mock(status_code=404)), USAGE),
        (FileNotFoundError("No such file or directory: weights.safetensors"), USAGE),
    ],
)
def test_unreachable_files_raise_unavailable_and_missing_files_usage_error(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "client", Mock())
    monkeypatch.setattr(registry, "load", Mock(side_effect=error))
    with pytest.raises(UserError, match="models:/m-1 cannot be") as caught:
        prediction.load(Mock(), "models:/m-1")
    assert caught.value.code == code


def test_output_that_is_the_input_or_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.csv").write_text("user\n1\n")
    with pytest.raises(UserError, match=r"The output users\.csv is the input, which it would replace") as caught:
        prediction.predict(resolve({}), "rec@champion", str(tmp_path / "users.csv"), "users.csv", {})
    assert caught.value.code == USAGE
    assert (tmp_path / "users.csv").read_text() == "user\n1\n"
    (tmp_path / "top.csv").mkdir()
    with pytest.raises(UserError, match=r"The output top\.csv is a folder"):
        prediction.predict(resolve({}), "rec@champion", str(tmp_path / "users.csv"), "top.csv", {})


def test_users_of_histories_are_numbered_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        metadata = SimpleNamespace(signature=None)

        def predict(self, batch: pd.DataFrame, params: Any) -> pd.DataFrame:
            return pd.DataFrame({"user": np.arange(len(batch)), "item": [items[0] for items in batch["history"]]})

    monkeypatch.setattr(prediction, "load", lambda settings, model: Model())
    monkeypatch.setattr(tables, "BATCH_ROWS", 3)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"history": [{item}]}}\n' for item in range(8)))
    prediction.predict(None, "rec/1", str(tmp_path / "in.jsonl"), str(tmp_path / "out.parquet"), {})  # type: ignore[arg-type]
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["user"].tolist() == found["item"].tolist() == list(range(8))


def test_abstention_summary_covers_all_batches_and_warns_of_drift() -> None:
    random = np.random.default_rng(0)

    def summary(shift: float) -> list[str]:
        of_all = Summary()
        calibration = random.random(80).tolist()
        for _ in range(3):
            frame = pd.DataFrame({"a": [1]})
            scores = random.random(20) + shift
            reported = {"scores": scores.tolist(), "answered": (scores > 0.5).tolist(), "calibration": calibration}
            frame.attrs["abstention"] = {**reported, "promise": "at most 0.1 fail"}
            of_all.add(frame)
        return of_all.lines()

    first, second = summary(0.0)
    assert first.endswith("of 60 queries answered; at most 0.1 fail")
    assert second.startswith("drift: none seen (p = ")
    assert "an alarm is false for 1% of files" in second
    assert "nothing is promised" in summary(1.0)[1]
    assert Summary().lines() == []


def test_a_list_of_floats_may_have_whole_numbers() -> None:
    """JSON writes such floats as whole numbers, and MLflow refuses them."""
    columns = [ColSpec(Array(DataType.double), "x"), ColSpec(Array(DataType.string), "names")]
    rows = pd.DataFrame({"x": [[1, 2], [0.5, 3]], "names": [["a"], ["b"]]})
    frame = typed(rows, columns, "in.jsonl", 0)
    assert [list(map(type, value)) for value in frame["x"]] == [[float, float]] * 2
    assert frame["x"].tolist() == [[1.0, 2.0], [0.5, 3.0]]
    assert frame["names"].tolist() == [["a"], ["b"]]
    _enforce_schema(frame, Schema(columns))
    assert typed(pd.DataFrame({"x": [[1], None]}), columns[:1], "in.jsonl", 0)["x"].tolist() == [[1.0], None]
    of_numpy = [np.float32(0.5), np.int32(1)]  # as in a list made in a notebook
    assert typed(pd.DataFrame({"x": [of_numpy]}), columns[:1], "in.jsonl", 0)["x"].tolist() == [of_numpy]
    whole = ColSpec(Array(DataType.long), "x")
    assert typed(pd.DataFrame({"x": [[np.int64(3)]]}), [whole], "in.jsonl", 0)["x"].tolist() == [[3]]
    for odd in (["1"], [True]):  # MLflow refuses them, too
        with pytest.raises(UserError, match=r"Column x of in\.jsonl is wrong in row 2"):
            typed(pd.DataFrame({"x": [None, odd]}), columns[:1], "in.jsonl", 0)
