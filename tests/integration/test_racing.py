"""Racing on a real Ray: after kill -9 of driver and trials it decides as an undisturbed sweep in one process does."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.support.commands import Command, Start, Store, trials

pytestmark = [pytest.mark.faults, pytest.mark.long]

SWEEP = [
    "sweep", "recommender", "dataset=synthetic", "--space", "mf", "epochs=30", "refit=false", "--trials", "8",
    "--scheduler", "racing", "--ordered", "--sampler", "random", "--seed", "3",
]  # fmt: skip


def outcome(home: Path) -> list[tuple[object, ...]]:
    """The state, epochs and value of each trial."""
    return [(row["state"], row["epochs"], row["value"]) for row in trials(home)]


def test_racing_sweep_after_kills_matches_an_undisturbed_one(
    home: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    disturbed = start(*SWEEP, "--concurrency", "2")
    for number in range(3):
        disturbed.until(lambda command=disturbed: "started" in command.text())
        time.sleep(draw.uniform(0, 4))
        with capsys.disabled():
            print(f"seed {seed}, round {number}")
        if number % 2 and (workers := disturbed.workers("TrialActor")):
            draw.choice(workers).kill()
        else:
            disturbed.kill()
        if disturbed.process.poll() is not None:
            disturbed = start("sweep", "--resume", "latest")
    assert disturbed.end() == 0, disturbed.text()
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "other"))
    alone = Command(tmp_path / "other", *SWEEP, "--local", "--tracking", "none")
    assert alone.end() == 0, alone.text()
    assert outcome(home) == outcome(tmp_path / "other")
    assert {row["state"] for row in trials(home)} == {"complete", "pruned"}
    Store(home).check()
