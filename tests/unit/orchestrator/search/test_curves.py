"""The learning curves of a sweep's trials, in a file that a full disk may cut off."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engine.loop import Row
from orchestrator.search import curves
from orchestrator.search.curves import CURVES, Curves
from workloads.contract import Objective


def test_rows_after_a_line_that_was_cut_off_are_read(tmp_path: Path) -> None:
    written = Curves(tmp_path, [Objective("ndcg", "max")])
    written.add(0, [Row(1, 0.0, {"validation/ndcg": 0.1})])
    with (tmp_path / CURVES).open("a") as stream:
        stream.write('{"trial": 0, "seed": 0, "epo')
    written.add(0, [Row(epoch, 0.0, {"validation/ndcg": epoch / 10}) for epoch in (2, 3)])
    assert curves.read(tmp_path, "validation/ndcg") == {(0, 0): [(1, 0.1), (2, 0.2), (3, 0.3)]}
