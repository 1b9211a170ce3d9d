"""A sweep whose driver, trials, raylet and GCS are killed at random times: nothing is lost, doubled or left running.

Each of the four is killed at least once. ``KILL_SEED`` repeats a draw. Ten rounds with a record of them:

    export KILL_ROUNDS=10 KILL_RECORD=benchmarks/results/random_kills.json
    pytest -m faults tests/integration/test_random_kills.py
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import harness
from orchestrator.errors import UNAVAILABLE
from tests.support.commands import SPACES, Command, Start, Store, trials

VICTIMS = ("driver", "TrialActor", "raylet/raylet", "gcs_server")
ROUNDS = int(os.environ.get("KILL_ROUNDS", len(VICTIMS)))
TRIALS, EPOCHS = 4 * ROUNDS, 12

NOT_STARTED = "Cannot start a Ray cluster on this machine"

pytestmark = [pytest.mark.faults, pytest.mark.long]


def test_sweep_completes_without_lost_rows_after_random_kills(
    home: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = harness.origin()
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**32)))
    draw, store = random.Random(seed), Store(home)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(ROUNDS)]
    draw.shuffle(victims)
    words = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "--trials", str(TRIALS)]
    sweep = start(*words, "--concurrency", "2", f"epochs={EPOCHS}", "slow=0.3", "refit=false")
    rounds: list[dict[str, object]] = []
    for number, victim in enumerate(victims):
        before = _epochs(store)
        sweep = _training(sweep, start, lambda before=before: _epochs(store) > before)
        assert sweep.process.poll() is None, sweep.text()
        time.sleep(draw.uniform(0, 4))
        rounds.append({"victim": victim, "after_epochs": _epochs(store)})
        with capsys.disabled():
            print(f"seed {seed}, round {number}: {victim} is killed after {rounds[-1]['after_epochs']} epochs")
        if sweep.process.poll() is None:
            _kill(sweep, victim, draw)
        if victim != "TrialActor":
            sweep.end()
            assert "Traceback" not in sweep.text(), sweep.text()
        if sweep.process.poll() is not None:
            sweep = start("sweep", "--resume", "latest")
    sweep = _training(sweep, start, lambda: False)
    code = sweep.end()
    assert [(row["state"], row["cause"]) for row in trials(home)] == [("complete", None)] * TRIALS
    assert code == 0, sweep.text()
    store.check()
    store.check_trials(TRIALS, EPOCHS)
    if record := os.environ.get("KILL_RECORD"):
        words = f"KILL_ROUNDS={ROUNDS} KILL_SEED={seed} pytest -m faults tests/integration/test_random_kills.py"
        outcome = {"trials": TRIALS, "complete": TRIALS, "lost": 0, "doubled": 0, "running": 0, "exit_code": code}
        about = {**origin, "ray": version("ray"), "command": words, "seed": seed}
        Path(record).write_text(json.dumps({**about, "rounds": rounds, "outcome": outcome}, indent=1) + "\n")


def _training(sweep: Command, start: Start, condition: Callable[[], bool]) -> Command:
    """Wait for ``condition`` or the end. If Ray did not start within its own 30 s, resume again."""
    while True:
        sweep.until(lambda command=sweep: condition() or command.process.poll() is not None)
        if sweep.process.poll() != UNAVAILABLE or NOT_STARTED not in sweep.text():
            return sweep
        sweep = start("sweep", "--resume", "latest")


def _epochs(store: Store) -> int:
    return sum(map(len, store.steps().values()))


def _kill(sweep: Command, victim: str, draw: random.Random) -> None:
    if victim == "driver":
        sweep.kill()
        return
    if processes := sweep.workers(victim):
        draw.choice(processes).kill()
