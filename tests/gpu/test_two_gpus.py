"""Tests that need a node of two GPUs: NCCL between workers, groups in a sweep, trials that share a device's memory.

On other machines they are skipped visibly. ``make test-gpu`` runs them with the tests that need one GPU. The GPUs are
real, not fakes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import SPACES, Start, Store, starting, trials

GPUS = 2

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < GPUS, reason=f"there are no {GPUS} CUDA devices"),
    pytest.mark.timeout(600),
]

TRAINING = ["recommender", "dataset=synthetic", "epochs=4", "backbone=mf", "refit=false"]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    with starting(home, "--cpus-per-worker", "0.25") as begin:
        yield begin


def outcome(home: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "storage" / name / "outcome.json").read_text())["metrics"]
    return found


def test_two_workers_over_nccl_match_the_metrics_of_one(home: Path, start: Start) -> None:
    """The global batch is the same, half of it on each GPU. The tolerance is for the order of additions."""
    for name, workers in (("alone", "1"), ("together", "2"), ("elastic", "1:2")):
        run = start("run", *TRAINING, "--workers", workers, "--gpus-per-worker", "1", "--name", name)
        assert run.end(300) == 0, run.text()
    alone = outcome(home, "alone")
    for name in ("together", "elastic"):
        assert outcome(home, name) == pytest.approx(alone, rel=2e-2, abs=2e-3)
    assert Store(home).tag("orchestrator.workers") == ["2"]


def test_two_simclr_workers_match_the_metrics_of_one(home: Path, start: Start) -> None:
    """Negatives, batch statistics and the calibration of α span both GPUs; only the order of additions differs.

    The test compares the geometry of the embeddings, which depends little on this order, and not single neighbours.
    """
    words = ["simclr", "dataset_size=16", "encoder=tiny", "loss=bcl", "lr=1e-4", "epochs=3", "batch_size=256"]
    found = {}
    for name, workers in (("alone", "1"), ("together", "2")):
        run = start("run", *words, "refit=false", "--workers", workers, "--gpus-per-worker", "1", "--name", name)
        assert run.end(300) == 0, run.text()
        found[name] = outcome(home, name)
    for metric in ("test/alignment", "test/uniformity", "test/auc"):
        assert found["together"][metric] == pytest.approx(found["alone"][metric], rel=2e-2, abs=2e-3)


def test_trials_of_two_workers_run_one_at_a_time_on_two_gpus(home: Path, start: Start) -> None:
    words = ["--space", "mf", "--trials", "3", "--scheduler", "asha", "--workers", "2", "--gpus-per-worker", "1"]
    sweep = start("sweep", *TRAINING, *words)
    assert sweep.end(500) == 0, sweep.text()
    assert "1 trial at once" in sweep.text()
    assert {row["state"] for row in trials(home)} <= {"complete", "pruned"}
    Store(home).check()


def test_trials_share_gpus_and_one_over_its_memory_share_fails(home: Path, start: Start) -> None:
    """Four trials share a GPU. One uses more than its quarter of the memory and fails alone, with advice."""
    words = ["--space", f"{SPACES}:one_hogs", "--trials", "8", "--scheduler", "none", "--gpus-per-worker", "0.25"]
    sweep = start("sweep", "toy", "epochs=4", "slow=0.5", "refit=false", *words, "--pack", "off")
    assert sweep.end(500) == 4, sweep.text()
    assert f"{4 * GPUS} trials at once" in sweep.text()
    rows = trials(home)
    assert [row["state"] for row in rows] == ["complete", "fail", *["complete"] * 6]
    assert "accumulate=auto, a smaller batch_size or a larger --gpus-per-worker" in rows[1]["cause"]
    Store(home).check()
