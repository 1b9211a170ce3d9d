"""Exported models: example and tags, binary input columns, and MLflow's addresses and timeout."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.errors import UserError
from orchestrator.registry import servable, tables
from orchestrator.tracking import store
from orchestrator.tracking.mlflow_globals import FILE_SECONDS, TIMEOUT, tracking_uri_set
from workloads.contract import Columns, Servable

IMAGE = b"\x89PNG\x00\xff"


class Column:
    """A column of a model's signature."""

    required = True

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.type = type("Type", (), {"name": kind})


BINARY = [Column("image", "binary")]


def exported(example: Columns, folder: Path) -> dict[str, Any]:
    servable.write(Servable(Path("predictor.py"), {}, {}, example, {"k": 10}, ("numpy",)), folder)
    return servable.read(folder)


def test_exported_example_is_read_back_unchanged(tmp_path: Path) -> None:
    example: Columns = {
        "user": np.array([7, 8]), "text": np.array(["a", "b"]), "image": np.array([IMAGE, b""], dtype=object),
        "pixels": np.arange(4).reshape(2, 2),
    }  # fmt: skip
    assert exported(example, tmp_path) == {
        "example": {"user": [7, 8], "text": ["a", "b"], "image": [IMAGE, b""], "pixels": [[0, 1], [2, 3]]},
        "params": {"k": 10},
        "requirements": ["numpy"],
        "tags": {},
        "alternatives": {},
        "optional": {},
    }


def test_export_of_an_earlier_version_without_tags_is_read(tmp_path: Path) -> None:
    meta = {"example": {"user": [1]}, "params": {}, "requirements": []}
    (tmp_path / servable.FILE).write_text(json.dumps(meta))
    assert servable.read(tmp_path) == {**meta, "tags": {}, "alternatives": {}, "optional": {}}


def test_example_with_values_other_than_plain_or_bytes_raises_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="plain values and bytes, not PosixPath"):
        exported({"file": np.array([tmp_path.with_name("x")], dtype=object)}, tmp_path)


@pytest.mark.parametrize("text", [base64.b64encode(IMAGE).decode(), base64.encodebytes(IMAGE * 30).decode()])
def test_base64_text_of_a_binary_column_is_decoded(text: str) -> None:
    found = tables.typed(pd.DataFrame({"image": [text, text]}), BINARY, "images.csv", 0)
    assert found["image"].tolist() == [base64.b64decode(text)] * 2


def test_bytes_and_non_text_values_of_a_binary_column_are_unchanged() -> None:
    given = pd.DataFrame({"image": pd.Series([IMAGE, None, [[1, 2], [3, 4]]], dtype=object)})
    assert tables.typed(given, BINARY, "images.parquet", 0)["image"].tolist() == given["image"].tolist()


def test_invalid_base64_text_raises_with_column_and_row() -> None:
    given = pd.DataFrame({"image": [base64.b64encode(IMAGE).decode(), "no base64! " * 100]})
    with pytest.raises(UserError, match=r"Column image of a\.csv is wrong in row 8194: got 'no base.*base64 text") as e:
        tables.typed(given, BINARY, "a.csv", 8192)
    assert len(str(e.value)) < 200


def test_digits_of_a_binary_column_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "images.csv"
    file.write_text("image\n0012\n")
    (frame,) = tables.frames(str(file), "images.csv", BINARY)
    assert frame["image"].tolist() == ["0012"]


def test_mlflow_uris_are_restored_after_tracking_uri_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise every subprocess of a notebook would inherit the URI after the registration of one model."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine:5000")
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    with tracking_uri_set(f"sqlite:///{tmp_path}/other.db"):
        assert mlflow.get_tracking_uri() == mlflow.get_registry_uri() == f"sqlite:///{tmp_path}/other.db"
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mine:5000" == mlflow.get_tracking_uri()
    assert "MLFLOW_REGISTRY_URI" not in os.environ


@pytest.mark.parametrize(("given", "seconds"), [(None, FILE_SECONDS), ("45", "45")])
def test_request_timeout_is_longer_for_files_unless_the_user_set_one(
    given: str | None, seconds: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server answers only after the whole file is in its bucket."""
    monkeypatch.setenv(TIMEOUT, given or "0")
    if given is None:
        monkeypatch.delenv(TIMEOUT)
    store.quiet()
    usual = os.environ[TIMEOUT]
    with tracking_uri_set(f"sqlite:///{tmp_path}/other.db"):
        assert os.environ[TIMEOUT] == seconds
    assert os.environ[TIMEOUT] == usual
