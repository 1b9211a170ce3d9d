"""A worker node of a run with two workers is killed: the run continues on the other or the restarted node."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.topology import CPUS, STARTING_SECONDS, User
from tests.support.waiting import until

EPOCHS, EPOCH_SECONDS = 60, 0.25


@pytest.mark.parametrize("cpus", [CPUS // 2, CPUS], ids=["the other node takes both", "the node comes back"])
def test_a_run_of_two_workers_goes_on_when_a_node_is_killed(cpus: int, user: User) -> None:
    nodes = user.topology.nodes
    words = ["run", "toy", f"epochs={EPOCHS}", f"slow={EPOCH_SECONDS}", "refit=false"]
    run = user.submit(*words, "--workers", "2", "--cpus-per-worker", str(cpus))
    checkpoints = "storage/*/train/checkpoint-*/checkpoint.json"
    saved: list[Path] = run.until(lambda: list(user.home.glob(checkpoints)), STARTING_SECONDS)
    assert 0 < json.loads(saved[0].read_text())["epoch"] < EPOCHS
    held = [len(node.processes("RayTrainWorker")) for node in nodes]
    assert sorted(held) == ([0, 2] if cpus < CPUS else [1, 1])

    killed, victim = time.time(), held.index(max(held))
    user.topology.kill_node(victim)
    if cpus == CPUS:
        user.topology.start_node(victim)
    assert run.end() == 0, run.text()
    user.store.check()
    (steps,) = user.store.steps().values()
    assert steps == list(range(1, EPOCHS + 1)), "a row was lost or doubled"
    rows = user.store.query("select timestamp from metrics where key = 'train/loss' order by step")
    times = [moment / 1000 for (moment,) in rows]
    assert times[0] < killed < times[-1]
    silence = max(late - early for early, late in pairwise(times))
    print(f"\nnode killed: the next new epoch {silence:.1f} s after the last; rows lost 0, doubled 0")
    if cpus < CPUS:
        assert len(until(user.topology.alive, pause=0.1)) == 2, "the killed node was started again"
