"""Damaged Parquet files of every kind of data, named before training starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from workloads.data import DataError, ReadOptions, check_readable, dataset
from workloads.data.datasets import check_kind

TEXTS = [f"text {number}" for number in range(2000)]
TABLES: dict[str, dict[str, Any]] = {
    "interactions": {"user": TEXTS, "item": TEXTS},
    "sentence_pairs": {"sentence1": TEXTS, "sentence2": TEXTS, "score": [2.0] * len(TEXTS)},
    "retrieval": {"query": TEXTS, "positive": TEXTS, "negative": [f"no {text}" for text in TEXTS]},
    "images": {"image": [text.encode() for text in TEXTS], "label": [0, 1] * (len(TEXTS) // 2)},
}


def damaged(folder: Path, kind: str, place: slice) -> Path:
    file = folder / "own.parquet"
    parquet.write_table(pa.table(TABLES[kind]), file)
    content = bytearray(file.read_bytes())
    content[place] = b"\xff" * len(content[place])
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("kind", TABLES)
def test_a_damaged_page_of_parquet_is_an_error_about_the_file(tmp_path: Path, kind: str) -> None:
    file = damaged(tmp_path, kind, slice(20, 2000))
    assert dataset(str(file)).kind == kind
    with pytest.raises(DataError, match=rf"^{file}: the file is not Parquet, or is damaged: got"):
        check_readable(str(file), tmp_path, ReadOptions(size=8))


def test_a_damaged_footer_of_parquet_is_an_error_about_the_file(tmp_path: Path) -> None:
    file = damaged(tmp_path, "images", slice(-60, -20))  # Arrow raises OSError for it, and ArrowInvalid for a cut file
    with pytest.raises(DataError, match=rf"^{file}: the path is not a dataset: got Couldn't deserialize thrift"):
        check_kind(str(file), "images")
    with pytest.raises(DataError, match=rf"^{file}: the file is not Parquet, or is damaged: got Couldn't deserialize"):
        check_readable(str(file), tmp_path)
