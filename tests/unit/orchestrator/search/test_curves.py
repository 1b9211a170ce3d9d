"""The learning curves of a sweep's trials, in a file that a full disk may cut off."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engine.loop import Row
from orchestrator.search import curves
from orchestrator.search.curves import CURVES, Curves


def test_rows_after_a_line_that_was_cut_off_are_read(tmp_path: Path) -> None:
    written = Curves(tmp_path)
    written.add(0, [Row(1, 0.0, {"validation/ndcg": 0.1})])
    with (tmp_path / CURVES).open("a") as stream:
        stream.write('{"trial": 0, "seed": 0, "epo')
    written.add(0, [Row(epoch, 0.0, {"validation/ndcg": epoch / 10}) for epoch in (2, 3)])
    assert curves.read(tmp_path, "validation/ndcg") == {(0, 0): [(1, 0.1), (2, 0.2), (3, 0.3)]}


def test_rows_have_every_metric_also_of_earlier_versions(tmp_path: Path) -> None:
    earlier = '{"trial": 3, "seed": 0, "epoch": 1, "train/loss": 0.5}\n'
    (tmp_path / CURVES).write_text(earlier)
    rows = [Row(2, 7.0, {"validation/ndcg": 0.2, "validation/hit": 0.4}), Row(3, 8.0, {"train/loss": 0.1})]
    Curves(tmp_path).add(3, rows)
    Curves(tmp_path).add(3, [Row(2, 0.0, {"train/loss": 9.0})], seed=1)
    first, *others = curves.rows(tmp_path, 3)
    assert (first.epoch, first.metrics) == (1, {"train/loss": 0.5})
    assert others == rows
    assert curves.rows(tmp_path, 4) == []
