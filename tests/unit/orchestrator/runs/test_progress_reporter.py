"""Progress output for the rows of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.loop import Row
from orchestrator.runs.progress_reporter import ProgressReporter


@pytest.mark.parametrize("resumed_after", [0, 2, 3])
def test_resumed_run_shows_refit_epochs_up_to_its_best_epoch(tmp_path: Path, resumed_after: int) -> None:
    """The validation values are .1, .5 and .3, so the refit has two epochs."""
    shown: list[tuple[Any, ...]] = []
    session = SimpleNamespace(
        tracker=None, publisher=SimpleNamespace(trained=lambda number: None), folder=SimpleNamespace(path=tmp_path),
        console=SimpleNamespace(progress=lambda *of: shown.append(of)),
    )  # fmt: skip
    spec = ExperimentSpec(workload="recommender", params={}, plan=Plan(epochs=50, refit=True))

    def reporter() -> ProgressReporter:
        return ProgressReporter(session, spec)  # type: ignore[arg-type]

    rows = [Row(epoch, 0.0, {"validation/ndcg_at_20": value}) for epoch, value in ((1, 0.1), (2, 0.5), (3, 0.3))]
    reporter().rows(rows[:resumed_after])
    resumed = reporter()
    resumed.rows(rows[resumed_after:])
    resumed.rows([Row(1, 0.0, {"refit/loss": 0.2})])
    assert shown[-1][:3] == (1, 2, "refit epoch")
