"""Predictions of several batches in one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from orchestrator.errors import RunFailed
from orchestrator.registry.tables import output

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
def test_batches_of_other_columns_are_no_table(end: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{end}"

    def write_both() -> None:
        with output(str(target)) as write:
            write(SENTENCES[["vector"]])
            write(PAIRS[["similarity"]])

    with pytest.raises(RunFailed, match="after columns vector come similarity"):
        write_both()
    assert not any(tmp_path.iterdir())


def test_json_lines_take_any_columns(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with output(str(target)) as write:
        write(SENTENCES[["vector"]])
        write(PAIRS[["similarity"]])
    assert target.read_text() == '{"vector":[1.0,2.0]}\n{"similarity":0.5}\n{"similarity":0.25}\n'
