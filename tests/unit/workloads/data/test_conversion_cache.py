"""Conversions of files that change."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from workloads.data import DataError, conversion_cache
from workloads.data.images import load as images
from workloads.data.images.load import load_images
from workloads.data.interactions.load import load_interactions
from workloads.data.pairs import load as pairs
from workloads.data.pairs.load import load_pairs


def shop(rows: int) -> dict[str, Any]:
    return {"user": list(range(rows)), "item": list(range(rows))}


def sentences(rows: int) -> dict[str, Any]:
    texts = [f"text {row}" for row in range(rows)]
    return {"sentence1": texts, "sentence2": texts, "score": [2.0] * rows}


def photos(rows: int) -> dict[str, Any]:
    Image.new("RGB", (8, 8)).save(file := io.BytesIO(), "PNG")
    return {"image": [file.getvalue()] * rows, "label": [0] * rows}


def shop_rows(path: Path) -> int:
    data = load_interactions(str(path), path.parent)
    return len(data.train) + len(data.test)


def sentence_rows(path: Path) -> int:
    data = load_pairs(str(path), path.parent)
    return sum(len(part) for part in (data.train, data.validation, data.test) if part is not None)


def photo_rows(path: Path) -> int:
    return len(load_images(str(path), path.parent).train.rows)


@pytest.mark.parametrize(
    ("module", "columns", "rows"),
    [(conversion_cache, shop, shop_rows), (pairs, sentences, sentence_rows), (images, photos, photo_rows)],
)
def test_a_file_that_changes_while_it_is_read_is_not_taken_for_the_earlier_one(
    module: ModuleType,
    columns: Callable[[int], dict[str, Any]],
    rows: Callable[[Path], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "own.parquet"
    parquet.write_table(pa.table(columns(50)), path)
    read = module.read

    def overtaken(name: str, root: Path) -> Any:
        parquet.write_table(pa.table(columns(60)), path)
        return read(name, root)

    monkeypatch.setattr(module, "read", overtaken)
    with pytest.raises(DataError, match=rf"the files of dataset {path} changed while they were read\. Start again"):
        rows(path)
    monkeypatch.setattr(module, "read", read)
    assert rows(path) == 60
    parquet.write_table(pa.table(columns(50)), path)
    assert rows(path) == 50
