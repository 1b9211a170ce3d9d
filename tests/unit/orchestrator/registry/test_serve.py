"""A served model: requests of MLflow's form, batches, an alias that moves; on Ray Serve with ``make test-tools``."""

from __future__ import annotations

import importlib.util
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

from orchestrator.registry import models as registry
from orchestrator.registry.served_model import Served, answers, current, load
from orchestrator.registry.serving_formats import BadRequest, answer_lengths, as_json, batching, frame_of
from orchestrator.storage.settings import Settings, resolve
from tests.support.commands import Command, typed
from tests.support.ports import free_port
from tests.support.refusals import refused
from tests.support.registered import register
from tests.support.stores import copy_store

ROWS = {"columns": ["a", "b"], "data": [[1, 2], [3, 4]]}


class Doubling:
    """A model whose rows do not depend on each other; it refuses a negative number."""

    calls = 0

    def predict(self, frame: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        self.calls += 1
        if (frame["a"] < 0).any():
            raise ValueError(f"row {int((frame['a'] < 0).argmax())} of the input is negative")
        return pd.DataFrame({"twice": frame["a"] * (params or {"by": 2})["by"]})


def test_request_formats_of_mlflow_give_the_same_rows() -> None:
    split, params = frame_of(json.dumps({"dataframe_split": ROWS, "params": {"k": 3}}).encode(), "application/json")
    records = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert params == {"k": 3}
    for body, kind in (
        (json.dumps({"dataframe_records": records}), "application/json"),
        (json.dumps({"inputs": {"a": [1, 3], "b": [2, 4]}}), "application/json"),
        ("a,b\n1,2\n3,4\n", "text/csv; charset=utf-8"),
    ):
        pd.testing.assert_frame_equal(frame_of(body.encode(), kind)[0], split)
    assert json.loads(as_json(split)) == {"predictions": records}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "the request cannot be read"),
        ("[]", "the request has no rows; allowed: one of dataframe_split"),
        ('{"dataframe_split": {}, "inputs": []}', "the request has dataframe_split and inputs; allowed"),
        ('{"dataframe_split": {"rows": 3}}', "the request cannot be read"),
        ('{"inputs": ' + "[" * 10_000 + "]" * 10_000 + "}", "the request cannot be read: maximum recursion depth"),
    ],
)
def test_malformed_request_raises_bad_request(body: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        frame_of(body.encode(), "application/json")


def test_csv_request_reads_text_columns_as_text() -> None:
    columns = [ColSpec(DataType.string, "a"), ColSpec(DataType.long, "b")]
    frame, _ = frame_of(b"a, b\n007,1\n NA ,2\n", "text/csv", columns)
    assert frame.to_dict("list") == {"a": ["007", "NA"], "b": [1, 2]}


def test_predictions_other_than_tables_are_returned_as_json_lists() -> None:
    for values in (np.array([1, 2]), np.array([1, 2], "float32"), pd.Series([1, 2]), [np.int64(1), 2]):
        assert json.loads(as_json(values)) == {"predictions": [1, 2]}
    assert json.loads(as_json({"a": np.array([[1]])})) == {"predictions": {"a": [[1]]}}


def test_requests_are_batched_and_an_invalid_row_fails_only_its_request() -> None:
    model = Doubling()
    frames = [pd.DataFrame({"a": values}) for values in ([1, 2], [3], [4, 5, 6])]
    served = Served("models:/m/1", "1", model, "rows", params=ParamSchema([ParamSpec("by", DataType.long, 2)]))
    found = answers(served, [(frame, {}) for frame in frames])
    assert [one["twice"].tolist() for one in found] == [[2, 4], [6], [8, 10, 12]]
    assert model.calls == 1
    found = answers(served, [(frames[0], {"by": 3}), (frames[1], {}), (frames[2], {"by": 3})])
    assert [one["twice"].tolist() for one in found] == [[3, 6], [6], [12, 15, 18]]
    found = answers(served, [(frames[0], {}), (pd.DataFrame({"a": [-1]}), {}), (frames[1], {})])
    assert found[0]["twice"].tolist() == [2, 4]
    assert found[2]["twice"].tolist() == [6]
    assert isinstance(found[1], BadRequest)
    assert str(found[1]) == "ValueError: row 1 of the input is negative", "rows are counted as in predict"
    with pytest.raises(BadRequest):
        as_json(found[1])
    found = answers(served, [(frames[0], {"bye": 3}), (frames[0], {"by": "x"}), (frames[0], {})])
    assert str(found[0]) == "Unknown parameter of m/1: got 'bye'; allowed: by. Did you mean 'by'?"
    assert str(found[1]) == "Parameter by of m/1 is not valid: got 'x'; allowed: a whole number."
    assert found[2]["twice"].tolist() == [2, 4]
    nested = frame_of(b'{"dataframe_split": {"columns": [{"a": 1}], "data": [[1]]}}', "")
    found = answers(served, [nested, (frames[0], {})])
    assert isinstance(found[0], BadRequest)
    assert found[1]["twice"].tolist() == [2, 4]
    model.calls = 0
    answers(Served("models:/m/1", "1", model, "none"), [(frame, {}) for frame in frames])
    assert model.calls == 3


def test_request_values_are_converted_to_the_types_of_the_signature() -> None:
    """The conversion is that of MLflow's server and does not depend on other requests in the batch."""
    seen: list[pd.DataFrame] = []

    class Model:
        def predict(self, frame: pd.DataFrame, params: Any = None) -> pd.DataFrame:
            seen.append(frame)
            return frame

    kinds = {"id": DataType.long, "x": DataType.double, "at": DataType.datetime, "raw": DataType.binary}
    columns = [ColSpec(kind, name) for name, kind in kinds.items()]
    served = Served("models:/m/1", "1", Model(), "rows", columns)
    rows = [
        {"id": 2**53 + 1, "x": 2, "at": "2026-01-01T00:00:00", "raw": "AAE="},
        {"id": 2**53, "x": 0.5, "at": "2026-01-02", "raw": "AA=="},
        {"id": "one", "x": 0.5, "at": "2026-01-02", "raw": "AA=="},
    ]
    requests = [frame_of(json.dumps({"dataframe_records": [row], "params": {}}).encode(), "") for row in rows]
    one, other, refused = answers(served, requests)
    (alone,) = answers(served, requests[:1])
    pd.testing.assert_frame_equal(one, alone)
    assert len(seen) == 3  # x=2 and x=0.5 are predicted separately
    assert one["x"].dtype == float
    assert one["at"].tolist() == [pd.Timestamp("2026-01-01")]
    assert one["raw"].tolist() == [b"\0\1"]
    assert [*one["id"], *other["id"]] == [2**53 + 1, 2**53]
    assert str(refused) == "Column id of the request is wrong in row 1: got 'one'; allowed: a whole number."
    twice = frame_of(b'{"dataframe_split": {"columns": ["id", "id"], "data": [[1, 2]]}}', "")
    refused, other = answers(served, [twice, requests[1]])
    assert isinstance(refused, BadRequest)
    assert other["id"].tolist() == [2**53]


def listed(frame: pd.DataFrame, params: Any = None) -> pd.DataFrame:
    """For each row, a list of ``a`` rows."""
    rows = [(a, rank) for a in frame["a"] for rank in range(int(a))]
    return pd.DataFrame(rows, columns=["a", "rank"])


def test_lists_of_several_requests_are_predicted_in_one_call() -> None:
    calls: list[int] = []

    class Lists:
        def predict(self, frame: pd.DataFrame, params: Any = None) -> pd.DataFrame:
            calls.append(len(frame))
            return listed(frame)

    frames = [pd.DataFrame({"a": values}) for values in ([2, 3], [1], [1], [4])]
    served = Served("models:/m/1", "1", Lists(), "lists")
    found = answers(served, [(frame, {}) for frame in frames])
    assert [list(zip(one["a"], one["rank"])) for one in found] == [
        list(listed(frame).itertuples(index=False, name=None)) for frame in frames
    ]
    assert calls == [4], "equal requests are predicted once"
    calls.clear()
    empty, ambiguous = pd.DataFrame({"a": [0]}), pd.DataFrame({"a": [4, 4]})
    found = answers(served, [(frame, {}) for frame in (frames[3], empty, ambiguous)])
    assert [len(one) for one in found] == [4, 0, 8]
    assert calls == [4, 1, 1, 2], "ambiguous requests are predicted again"


def test_requests_with_columns_not_in_the_example_get_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model answers like a bi-encoder with a collection: two rows for a query, and none for an empty query."""

    class Search:
        input_example = pd.DataFrame({"text": ["a", "b"]})
        metadata = SimpleNamespace(
            signature=SimpleNamespace(
                inputs=Schema([ColSpec("string", name, False) for name in ("text", "query")]), params=None
            )
        )

        def predict(self, frame: pd.DataFrame, params: Any = None) -> pd.DataFrame:
            if "query" not in frame:
                return pd.DataFrame({"vector": frame["text"].map(ord)})
            rows = [(query, rank) for query in frame["query"] if query for rank in (1, 2)]
            return pd.DataFrame(rows, columns=["query", "rank"])

    monkeypatch.setattr(registry, "load", lambda settings, uri: Search())
    served = load(resolve({}), "models:/m/1")
    assert served.batching == "rows"
    found = answers(served, [(pd.DataFrame({"query": [query]}), {}) for query in ("", "mine")])
    assert [one.to_numpy().tolist() for one in found] == [[], [["mine", 1], ["mine", 2]]]


def test_batching_mode_is_derived_from_the_input_example() -> None:
    example = pd.DataFrame({"a": [1.0, 5.0]})
    assert batching(Doubling().predict, example) == "rows"
    assert batching(listed, example) == "lists"
    assert batching(lambda frame: pd.DataFrame({"rank": frame["a"].rank()}), example) == "none"
    assert batching(lambda frame: pd.concat([frame, frame]), example) == "none"
    assert batching(lambda frame: listed(frame)[["rank"]], example) == "none"  # the rows do not name their input row
    assert answer_lengths(example, listed(example)) == [1, 5]
    assert answer_lengths(example, listed(example[::-1])) is None


@pytest.fixture
def models(tmp_path: Path, initialised_store: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    settings = resolve({"tracking": f"sqlite:///{copy_store(initialised_store, tmp_path)}"})
    for number, dim in enumerate((4, 8), 1):
        register(settings, tmp_path / str(number), "rec", "recommender", {"backbone": "mf", "dim": dim})
    registry.client(settings).set_registered_model_alias("rec", "champion", "1")
    return settings


@pytest.mark.slow
def test_the_version_of_an_alias_is_loaded(models: Settings, home: Path) -> None:
    served = load(models, current(models, "rec@champion"))
    assert (served.uri, served.version, served.batching) == ("models:/rec/1", "1", "lists")
    registry.client(models).set_registered_model_alias("rec", "champion", "2")
    assert current(models, "rec@champion") == current(models, "rec/2") == "models:/rec/2"
    rows = pd.DataFrame({"user": [True]})
    found = answers(served, [(rows[:0], {}), (rows, {})])
    assert json.loads(as_json(found[0])) == {"predictions": []}
    assert str(found[1]) == "Incompatible input types for column user. Can not safely convert bool to int64."
    refused(lambda: current(models, "rec@challenger"), "The model rec has no alias challenger any more")
    missing = importlib.util.find_spec("grpc_reflection") is None
    said = typed(home, "serve", "rec@champion", "--tracking", str(models.tracking), "--replicas", "0")
    assert said.returncode == (3 if missing else 2)
    assert ("[serve]" if missing else "--replicas is not valid: got 0") in said.stderr


def request(address: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, data, {"Content-Type": "application/json"}), timeout=60
        ) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.tools
@pytest.mark.skipif(importlib.util.find_spec("grpc_reflection") is None, reason="make test-tools")
def test_an_alias_is_followed_without_a_restart_and_no_request_fails(models: Settings, tmp_path: Path) -> None:
    port = free_port()
    words = ("serve", "rec@champion", "--port", str(port), "--look", "0.5", "--tracking", str(models.tracking))
    server = Command(tmp_path / "served", *words)
    address = f"http://127.0.0.1:{port}"
    try:
        server.until(lambda: "/invocations" in server.text())
        assert request(f"{address}/health")[1] == {"model": "rec@champion", "version": "1", "trouble": None}
        rows = {"dataframe_records": [{"user": 3}, {"user": 5}], "params": {"k": 4}}
        for version in ("1", "2"):
            expected = registry.load(models, f"models:/rec/{version}").predict(
                pd.DataFrame({"user": [3, 5]}), params={"k": 4}
            )
            registry.client(models).set_registered_model_alias("rec", "champion", version)
            deadline = time.monotonic() + 120
            while request(f"{address}/health")[1]["version"] != version:
                code, answer = request(f"{address}/invocations", rows)
                assert code == 200, answer
                assert time.monotonic() < deadline
            code, answer = request(f"{address}/invocations", rows)
            assert code == 200
            assert [row["item"] for row in answer["predictions"]] == expected["item"].tolist()
        code, answer = request(f"{address}/invocations", {"rows": 3})
        assert code == 400
        assert answer["error"].startswith("the request has no rows")
        code, answer = request(f"{address}/invocations", {**rows, "params": {"k": -1}})
        assert (code, answer["error"].startswith("ValueError: k")) == (400, True), answer
        code, answer = request(f"{address}/invocations", {**rows, "filler": "x" * (64 << 20)})
        assert (code, answer["error"].startswith("the request is larger than 64 MB")) == (413, True), answer
        registry.client(models).delete_registered_model_alias("rec", "champion")
        deadline = time.monotonic() + 120
        while (state := request(f"{address}/health")[1])["trouble"] is None:
            assert time.monotonic() < deadline
        assert state["version"] == "2", "the loaded version still answers"
        assert request(f"{address}/invocations", rows)[0] == 200
    finally:
        server.ctrl_c()
        server.end()
