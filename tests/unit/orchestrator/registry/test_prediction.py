"""What ``predict`` refuses is said in words for people, not in the names of MLflow's types."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from mlflow.types import ColSpec, DataType, ParamSpec

from orchestrator.errors import UserError
from orchestrator.registry.prediction import _check_params
from orchestrator.registry.tables import typed

K, SHARES = ParamSpec("k", DataType.long, 10), ParamSpec("shares", DataType.double, [0.5], shape=(-1,))


@pytest.mark.parametrize(
    ("spec", "given", "words"),
    [
        ([K], {"k": "abc"}, "Parameter k of rec/1 is not valid: got 'abc'; allowed: a whole number."),
        ([SHARES], {"shares": ["x"]}, "Parameter shares of rec/1 is not valid: got ['x']; allowed: a list, each a"),
        ([K], {"kk": 1}, "Unknown parameter of rec/1: got 'kk'; allowed: k. Did you mean 'k'?"),
        ([], {"k": 5}, "rec/1 takes no parameters: got k=5. Leave it out."),
        (None, {"k": 5}, "rec/1 takes no parameters: got k=5. Leave it out."),
    ],
)  # fmt: skip
def test_parameters(spec: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        _check_params("rec/1", spec, given)
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
def test_columns(kind: DataType, value: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        typed(pd.DataFrame({"a": [value]}, dtype=object), [ColSpec(kind, "a")], "in.csv", 0)
    assert str(caught.value) == f"Column a of in.csv is wrong in row 1: {words}"
