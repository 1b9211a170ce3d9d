"""Packed trials on a real cluster: after a kill each has the result of separate training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Search, SweepSpec
from orchestrator.runs import worker
from orchestrator.storage import records
from orchestrator.sweeps.pack import Packs
from tests.support.clusters import busy, logical, named, soon
from workloads.recommender.params import Params

EPOCHS, TRIALS = 24, 3
SWEEP = SweepSpec(workload="recommender", search=Search(trials=TRIALS))


class FakeManager:
    """A stand-in for the manager: hands out trials, keeps their rows, and kills the process once."""

    exhausted = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.specs = [
            ExperimentSpec(
                workload="recommender",
                params=Params(dim=8, lr=0.002 * (1 + number)).model_dump(),
                plan=Plan(epochs=EPOCHS, refit=True, decide_at=(EPOCHS // 4,)),
                seed=number,
            )
            for number in range(TRIALS)
        ]
        self.given = 0
        self.rows: dict[int, dict[int, Mapping[str, float]]] = {number: {} for number in range(TRIALS)}
        self.killed: list[int] = []
        self.released: set[int] = set()

    def next(self, *, hold: bool) -> dict[str, Any] | None:
        if self.given == TRIALS:
            self.exhausted = True
            return None
        self.given += 1
        return {
            "number": self.given - 1,
            "spec": self.specs[self.given - 1].model_dump(mode="json"),
            "folder": str(self.folder / str(self.given - 1)),
            "data": str(self.folder),
            "keep": 2,
            "save_at_rungs": True,
            "measure": [],
        }

    def result(self, unit: int, payload: Mapping[str, Any]) -> bool:
        assert "error" not in payload
        for epoch, _, metrics in payload["rows"]:
            assert self.rows[unit].setdefault(epoch, metrics) == metrics, "a repeated epoch has other numbers"
        if not self.killed:
            (process,) = named("PackActor")
            self.killed.append(process.pid)
            process.kill()
        return bool(payload["done"])

    def ask_ahead(self) -> None:
        pass

    def hold(self, unit: int, of: int) -> None:
        pass

    def release(self, unit: int) -> None:
        self.released.add(unit)

    def note_wait(self) -> None:
        pass

    def died(self, unit: int, cause: str) -> None:
        raise AssertionError(f"trial {unit}: {cause}")

    def stopping(self) -> bool:
        return False


@pytest.mark.faults
def test_packed_trials_match_separate_training_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    manager = FakeManager(tmp_path)
    with logical(monkeypatch, [{"num_cpus": 2}]):
        folder = records.create(tmp_path / "storage", "sweep", "recommender", {}, "orchestrator sweep recommender")
        Packs(SWEEP, folder, manager, [2], lambda wanted: wanted).run()  # type: ignore[arg-type]
        assert soon(lambda: not busy()), "a process is left"
    assert manager.killed
    assert manager.released == {0, 1}, "the two trials that ran"
    for number, spec in enumerate(manager.specs):
        work = worker.experiment(spec, tmp_path, torch.device("cpu"), final=False)
        apart = {row.epoch: dict(row.metrics) for report in work.stream() for row in report.rows}
        assert manager.rows[number] == apart
