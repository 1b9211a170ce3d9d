"""The network between the driver and a worker's node is cut without closing connections: nothing hangs.

The node has its own network namespace. The test sets its virtual cable down, so that packets are lost and no
connection is closed. Creating a namespace needs the rights of root. Without them, every process of the node is stopped
instead: its connections stay open too, and no data arrive from them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.nodes import Node
from tests.support.commands import ROOT, SPACES, THIRD_PARTY, Command, Start, Store, starting, trials

NAME = f"cut{os.getpid()}"
OURS, THEIRS = (f"10.213.{os.getpid() % 250}.{end}" for end in (1, 2))
EPOCHS, EPOCH_SECONDS = 60, 0.25

IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
"""The head gives up an unresponsive node after about 12 seconds; by default Ray waits about half a minute."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def cut(node: Node, cable: bool) -> None:
    """From now on no data arrive from the node."""
    if cable:
        ip("link", "set", NAME, "down")
        return
    for process in [node.process, *node.processes()]:
        with suppress(psutil.NoSuchProcess):
            process.suspend()


@pytest.fixture
def cable() -> Iterator[bool]:
    """A virtual cable with one end here and one in a namespace; yields whether it could be created."""
    try:
        ip("netns", "add", NAME)
    except (OSError, subprocess.CalledProcessError):
        yield False
        return
    try:
        ip("link", "add", NAME, "type", "veth", "peer", "name", "eth0", "netns", NAME)
        ip("address", "add", f"{OURS}/24", "dev", NAME)
        ip("link", "set", NAME, "up")
        ip("-n", NAME, "address", "add", f"{THEIRS}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            ip("-n", NAME, "link", "set", name, "up")
        yield True
    finally:
        subprocess.run(["ip", "link", "delete", NAME], check=False)  # processes keep a namespace after its name
        ip("netns", "delete", NAME)


@pytest.fixture
def cluster(cable: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, Node]]:
    """A head that also runs workers, and a node at the other end of the cable: one CPU each."""
    root = Path(tempfile.mkdtemp(prefix="rn-"))
    token = secrets.token_hex(16)
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)  # set for clusters that are started here
    environment = os.environ | IMPATIENT | {
        "HOME": str(root), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{THIRD_PARTY}{os.pathsep}{ROOT}",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",
    }  # fmt: skip
    if cable:
        head = Node(root / "head", OURS, 1, environment | {"GLOO_SOCKET_IFNAME": NAME})
        there = environment | {"GLOO_SOCKET_IFNAME": "eth0"}  # the host's name has no usable address there
        node = Node(root / "node", THEIRS, 1, there, head.address, prefix=["ip", "netns", "exec", NAME])
    else:
        head = Node(root / "head", "127.0.0.20", 1, environment)
        node = Node(root / "node", "127.0.0.21", 1, environment, head.address)
    try:
        for each in (head, node):
            each.start()
            each.wait()
        yield head, node
    finally:
        node.kill()
        head.kill()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    with starting(home) as begin:
        yield begin


@pytest.mark.parametrize(
    "words",
    [
        ["run", "toy", "--workers", "1:2"],
        ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "--trials", "2"],
    ],
    ids=["run", "sweep"],
)
def test_run_and_sweep_complete_when_the_network_to_a_node_is_cut(
    words: list[str], cluster: tuple[Node, Node], cable: bool, home: Path, start: Start
) -> None:
    head, node = cluster
    epochs = [f"epochs={EPOCHS}", f"slow={EPOCH_SECONDS}", "refit=false", "--cpus-per-worker", "1"]
    command: Command = start(*words, *epochs, "--ray-address", head.address)
    command.until(lambda: node.processes("ray::") and len(_saved(home)) >= (1 if words[0] == "run" else 2))
    cut(node, cable)
    pulled = time.monotonic()
    assert command.end() == 0, command.text()
    store = Store(home)
    store.check()
    steps = {key: steps for key, steps in store.steps().items() if words[0] == "run" or "/" in key}
    assert all(each == list(range(1, EPOCHS + 1)) for each in steps.values()), "a row was lost or doubled"
    if words[0] == "run":
        assert store.tag("orchestrator.workers") == ["2,1"]
        assert "Training with 1 worker" in command.text()
    else:
        assert [row["state"] for row in trials(home)] == ["complete"] * 2
    print(f"\n{'cable pulled' if cable else 'node stopped'}: done {time.monotonic() - pulled:.0f} s later")


def _saved(home: Path) -> set[Path]:
    """The folders that contain a checkpoint."""
    return {file.parents[1] for file in home.glob("storage/*/t*/**/checkpoint-*/checkpoint.json")}
