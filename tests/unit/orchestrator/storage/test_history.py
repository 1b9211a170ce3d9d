"""The rows of a run, in a file that a full disk may cut off."""

from __future__ import annotations

from pathlib import Path

from orchestrator.storage import history
from orchestrator.storage.names import HISTORY


def test_a_line_that_was_cut_off_is_replaced(tmp_path: Path) -> None:
    assert history.read(tmp_path) == []
    history.append(tmp_path, [{"epoch": 1, "train/loss": 0.5}])
    with (tmp_path / HISTORY).open("a") as stream:
        stream.write('{"epoch": 2, "train/lo')
    assert history.read(tmp_path) == [{"epoch": 1, "train/loss": 0.5}]
    history.append(tmp_path, [{"epoch": 2, "train/loss": 0.25}, {"epoch": 3, "train/loss": 0.125}])
    assert [row["epoch"] for row in history.read(tmp_path)] == [1, 2, 3]


def test_a_damaged_line_of_an_earlier_version_is_skipped(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text('{"epoch": 1}\n{"epoch": 2, 0.1{"epoch": 2}\n5\nnull\n[]\n{"epoch": 3}\n')
    assert [row["epoch"] for row in history.read(tmp_path)] == [1, 3]
