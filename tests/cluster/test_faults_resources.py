"""Resources that are lost in use: nodes of elastic runs, preempted machines, memory, disk space."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Node
from tests.cluster.topology import CPUS, Topology, User
from tests.support.commands import SPACES, trials
from tests.support.waiting import until

EPOCHS, EPOCH_SECONDS = 80, 0.25
PACE = [f"epochs={EPOCHS}", f"slow={EPOCH_SECONDS}", "refit=false"]
SEARCH = ["sweep", "toy", "--scheduler", "none", "--cpus-per-worker", "1", "--space", f"{SPACES}:space"]


def preempt(topology: Topology, number: int) -> None:
    """Terminate the node's first process, as on a preempted machine. The node then has its grace period."""
    process = topology.nodes[number].process
    assert process is not None
    process.terminate()


@pytest.mark.parametrize("loss", [Topology.kill_node, preempt], ids=["killed", "preempted"])
def test_an_elastic_run_goes_on_with_fewer_workers(loss: Callable[[Topology, int], None], user: User) -> None:
    run = user.submit("run", "toy", *PACE, "--workers", "1:2", "--cpus-per-worker", str(CPUS))
    run.until(lambda: _saved(user.home))
    lost = time.time()
    loss(user.topology, 1)
    assert run.end() == 0, run.text()
    _gone(user.topology.nodes[1])
    assert user.store.tag("orchestrator.workers") == ["2,1"], run.text()
    ((key, steps),) = user.store.steps().items()
    assert steps == list(range(1, EPOCHS + 1)), f"{key}: a row was lost or doubled"
    user.store.check()
    print(f"\n{loss.__name__}: {_silence(user, lost):.1f} s until the next new epoch")

    alone = user.start("run", "toy", f"epochs={EPOCHS}", "refit=false", "--local", "--tracking", "none")
    assert alone.end() == 0, alone.text()
    first, second = sorted(user.home.glob("storage/*/outcome.json"), key=lambda path: path.stat().st_mtime)
    assert _metrics(first) == _metrics(second), "the metrics must equal those of one worker"


def test_trials_of_a_preempted_node_save_and_go_on_elsewhere(user: User) -> None:
    """No epoch is trained twice: the current epochs end and are saved, and the trials continue after them."""
    sweep = user.submit(*SEARCH, *PACE, "checkpoint_every=1000", "--trials", str(2 * CPUS), "--keep", "all")
    sweep.until(lambda: len([key for key in user.store.steps() if "/" in key]) == 2 * CPUS)
    lost, node = time.time(), user.topology.nodes[1]
    preempt(user.topology, 1)
    assert sweep.end() == 0, sweep.text()
    assert [row["state"] for row in trials(user.home)] == ["complete"] * 2 * CPUS
    user.store.check()
    user.store.check_trials(2 * CPUS, EPOCHS)
    saved = [json.loads(file.read_text())["epoch"] for file in user.home.glob("storage/*/trials/*/*/checkpoint.json")]
    assert sum(epoch < EPOCHS for epoch in saved) == CPUS, "only the trials of that node save a checkpoint"
    _gone(node)
    print(f"\npreempted: {_silence(user, lost):.1f} s until the last of its trials went on")


def test_a_trial_that_is_out_of_memory_fails_alone(user: User) -> None:
    """A limit on the memory of the trial's process makes it fail, without filling the machine."""
    words = [f"{SPACES}:one_hogs", "--trials", "4", "epochs=4", "refit=false"]
    sweep = user.submit(*SEARCH[:-1], *words)
    assert sweep.end() == 4, sweep.text()
    rows = trials(user.home)
    assert [row["state"] for row in rows] == ["complete", "fail", "complete", "complete"]
    advice = "accumulate=auto, a smaller batch_size or fewer trials at once (--concurrency) may fit"
    assert rows[1]["cause"] == f"out of memory: {advice}"
    assert user.store.tag("orchestrator.cause") == [rows[1]["cause"]]
    user.store.check()


# Storage


@contextmanager
def small(folder: Path, size: str = "8m") -> Iterator[Path]:
    """A mounted file system of ``size``."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    assert not shutil.disk_usage(folder).free


def make_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def give_room(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    (folder / "filler").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["run", "toy"], id="run", marks=pytest.mark.long),
        pytest.param([*SEARCH, "--trials", "1"], id="sweep"),
    ],
)
def test_command_fails_on_full_storage_and_resumes_without_losing_rows(words: list[str], user: User) -> None:
    with small(user.home / "storage") as storage:
        first = user.submit(*words, *PACE)
        first.until(lambda: _checkpoints(user.home))
        fill(storage)
        assert first.end() == 3, first.text()
        told = first.text()
        assert f"The storage {storage}" in told
        assert "cannot be written" in told
        assert "Traceback" not in told
        before = _checkpoints(user.home)
        assert before, "the last checkpoint before the failure is gone"

        give_room(storage)
        second = user.submit(words[0], "--resume", "latest")
        assert second.end() == 0, second.text()
        user.store.check()
        children = [steps for key, steps in user.store.steps().items() if words[0] == "run" or "/" in key]
        assert children == [list(range(1, EPOCHS + 1))], "a row was lost or doubled"


@pytest.mark.parametrize(
    "full", [pytest.param(fill, id="full"), pytest.param(make_read_only, id="read-only", marks=pytest.mark.long)]
)
def test_sync_delivers_artifacts_that_mlflow_could_not_store(full: Callable[[Path], None], user: User) -> None:
    """Metrics and model are kept, a message names the unwritable storage, and sync delivers all later."""
    server = user.topology.mlflow
    with small(server.artifacts) as artifacts:
        full(artifacts)
        run = user.submit("run", "toy", "epochs=3", "--register", "kept", "--cpus-per-worker", "1")
        assert run.end() == 0, run.text()
        told = run.text()
        assert "mlflow-artifacts" in told
        assert "orchestrator submit -- sync" in told
        assert "Traceback" not in told
        give_room(artifacts)
        sync = user.start("sync", "latest")
        assert sync.end() == 0, sync.text()
        assert "registered as models:/kept/" in sync.text()
        (steps,) = user.store.steps().values()
        assert steps == [1, 2, 3]
        user.store.check()


def _gone(node: Node) -> None:
    """Wait until the node has ended after its grace period, so that the next test starts the node again."""
    until(lambda: not node.running(), pause=0.1, why=node.log)


def _saved(home: Path) -> list[Path]:
    return list(home.glob("storage/*/train/checkpoint-*/checkpoint.json"))


def _checkpoints(home: Path) -> dict[str, int]:
    """The epoch of the newest complete checkpoint of each trial, or of the run."""
    found: dict[str, int] = {}
    for file in home.glob("storage/*/t*/**/checkpoint-*/checkpoint.json"):
        epoch, place = json.loads(file.read_text())["epoch"], str(file.parents[1])
        found[place] = max(found.get(place, 0), epoch)
    return found


def _metrics(outcome: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads(outcome.read_text())["metrics"]
    return metrics


def _silence(user: User, moment: float) -> float:
    """The longest time without a new row, in seconds, of a run that was under way at ``moment``."""
    rows = user.store.query("select run_uuid, timestamp from metrics where key = 'train/loss' order by run_uuid, step")
    times: dict[str, list[float]] = {}
    for run, milliseconds in rows:
        times.setdefault(run, []).append(milliseconds / 1000)
    gaps = [(late - early, late) for each in times.values() for early, late in pairwise(each)]
    return max(gap for gap, late in gaps if late >= moment)
