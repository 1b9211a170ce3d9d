"""A sweep whose driver, trials, raylet and GCS are killed at random times: nothing is lost, doubled or left running.

``KILL_ROUNDS=10 pytest -m faults tests/integration/test_random_kills.py`` runs ten rounds; make test-faults runs three.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import SPACES, Command, Start, Store, starting, trials

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
VICTIMS = ("driver", "TrialActor", "raylet/raylet", "gcs_server")
TRIALS, EPOCHS = 6 * ROUNDS, 12

pytestmark = pytest.mark.faults


@pytest.fixture
def start(home: Path, database: Path) -> Iterator[Start]:
    with starting(home) as begin:
        yield begin


def test_a_sweep_ends_whole_after_random_kills(home: Path, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.randrange(2**32)
    draw, store = random.Random(seed), Store(home)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(ROUNDS)]
    draw.shuffle(victims)
    words = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "--trials", str(TRIALS)]
    sweep = start(*words, "--concurrency", "2", f"epochs={EPOCHS}", "slow=0.3", "refit=false")
    for number, victim in enumerate(victims):
        before = _epochs(store)
        sweep.until(lambda before=before: _epochs(store) > before)
        time.sleep(draw.uniform(0, 4))
        with capsys.disabled():
            print(f"seed {seed}, round {number}: {victim} is killed after {_epochs(store)} epochs")
        if sweep.process.poll() is None:
            _kill(sweep, victim, draw)
        if victim != "TrialActor":
            sweep.end()
            assert "Traceback" not in sweep.text(), sweep.text()
        if sweep.process.poll() is not None:
            sweep = start("sweep", "--resume", "latest")
    code = sweep.end()
    assert [(row["state"], row["cause"]) for row in trials(home)] == [("complete", None)] * TRIALS
    assert code == 0, sweep.text()
    store.check()
    children = {key: steps for key, steps in store.steps().items() if "/" in key}
    assert len(children) == TRIALS
    assert all(steps == list(range(1, EPOCHS + 1)) for steps in children.values()), children


def _epochs(store: Store) -> int:
    return sum(map(len, store.steps().values()))


def _kill(sweep: Command, victim: str, draw: random.Random) -> None:
    if victim == "driver":
        sweep.kill()
        return
    if processes := sweep.workers(victim):
        draw.choice(processes).kill()
