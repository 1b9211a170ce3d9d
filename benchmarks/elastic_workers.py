"""For how long does a run of one to two workers stand still after a loss: ours, and Ray Train's own elastic training?

On a cluster of its own: a head without CPUs and two nodes of one CPU each, as processes. After the first checkpoint a
worker's process is killed (-9), or its node gets the SIGTERM of a machine that is taken away and has Ray's grace period
of 30 s. The figure is the longest time between two epochs that have not been trained before.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import HERE, Benchmark, Row, arguments

from tests.cluster.nodes import Node

EPOCHS, EPOCH_SECONDS = 100, 0.5
AFTER_EPOCHS = 14
"""Epochs before the loss: both have saved by then."""

SECONDS = 600.0
"""After which a sample has failed."""

Epoch = dict[str, Any]


class Contestant:
    """A run as a job of the cluster. :meth:`epochs` reads what it has trained."""

    name: str

    def __init__(self, home: Path, address: str) -> None:
        self.home, self.address = home, address

    def command(self) -> list[str]:
        raise NotImplementedError

    def epochs(self) -> list[Epoch]:
        """Each trained epoch and its time, in order; one that was trained twice is there twice."""
        raise NotImplementedError


class Ours(Contestant):
    name = "ours"

    def command(self) -> list[str]:
        words = ["run", "idle", f"epochs={EPOCHS}", f"seconds={EPOCH_SECONDS}", "refit=false", "--workers", "1:2"]
        run = [*words, "--cpus-per-worker", "1", "--tracking", "none"]
        return [sys.executable, "-m", "orchestrator", "submit", "--address", self.address, "--", *run]

    def epochs(self) -> list[Epoch]:
        return lines(self.home.glob("storage/*/history.jsonl"))


class Rays(Contestant):
    name = "Ray Train, num_workers=(1, 2)"

    def command(self) -> list[str]:
        ray = str(Path(sys.executable).with_name("ray"))
        program = [str(HERE / "peers" / "ray_elastic.py"), str(self.home), str(EPOCHS), str(EPOCH_SECONDS)]
        return [ray, "job", "submit", "--address", self.address, "--", sys.executable, *program]

    def epochs(self) -> list[Epoch]:
        return lines(self.home.glob("epochs.jsonl"))


def lines(files: Iterator[Path]) -> list[Epoch]:
    """The complete lines of the files; one that a resume has repeated, with its time, once."""
    text = "".join(file.read_text() for file in files)
    epochs = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return list({(epoch["epoch"], epoch["time"]): epoch for epoch in epochs if epoch["epoch"]}.values())


def kill_worker(node: Node) -> None:
    for process in node.processes("RayTrainWorker"):
        process.kill()


def preempt(node: Node) -> None:
    assert node.process is not None
    node.process.terminate()


LOSSES: dict[str, Callable[[Node], None]] = {
    "a worker's process is killed": kill_worker,
    "a worker's node is killed": Node.kill,
    "a worker's node is preempted": preempt,
}


def main() -> None:
    args = arguments(__doc__.splitlines()[0], 3).parse_args()
    bench = Benchmark("elastic_workers", args.rounds, args.patience)
    asked: list[float] = []

    def figures(contestant: type[Contestant], loss: str) -> dict[str, float]:
        epochs, lost = sample(contestant, LOSSES[loss])
        asked.extend(epoch["asked"] for epoch in epochs[1:AFTER_EPOCHS] if "asked" in epoch)
        key = f"{contestant.name}: {loss}"
        return {key: pause(epochs, lost), f"{key}, epochs trained twice": len(epochs) - EPOCHS}

    bench.run({f"{each.name}: {loss}": partial(figures, each, loss) for loss in LOSSES for each in (Ours, Rays)})
    for loss in LOSSES:
        bench.compare(f"{loss}: no new epoch", "s", f"{Ours.name}: {loss}", f"{Rays.name}: {loss}")
    for loss in LOSSES:
        both = (f"{each.name}: {loss}, epochs trained twice" for each in (Ours, Rays))
        bench.compare(f"{loss}: trained twice", "epochs", *both)
    took = 1000 * statistics.median(asked)
    bench.rows.append(Row("get_preemption_info() in an epoch of two workers", "ms", took, Rays.name))
    bench.finish()


def sample(contestant: type[Contestant], lose: Callable[[Node], None]) -> tuple[list[Epoch], float]:
    """The epochs of a run that loses a worker, and when it lost it."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder, cluster(Path(folder)) as (head, nodes, environment):
        home = Path(folder) / "home"
        home.mkdir()
        run = contestant(home, head.jobs)
        with (home / "log.txt").open("w") as log:
            job = subprocess.Popen(
                run.command(), env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT
            )  # fmt: skip

        def until(condition: Callable[[], Any]) -> None:
            deadline = time.monotonic() + SECONDS
            while not condition():
                if time.monotonic() > deadline or job.poll():
                    raise SystemExit(f"{run.name} has failed:\n{(home / 'log.txt').read_text()[-4000:]}")
                time.sleep(0.1)

        until(lambda: len(run.epochs()) >= AFTER_EPOCHS)
        lost = time.time()
        lose(nodes[1])
        until(lambda: job.poll() == 0)
        epochs = run.epochs()
        if {epoch["epoch"] for epoch in epochs} != set(range(1, EPOCHS + 1)):
            raise SystemExit(f"{run.name} has lost epochs")
        return epochs, lost


def pause(epochs: list[Epoch], lost: float) -> float:
    """Longest time between two new epochs from the loss on, in seconds."""
    first: dict[int, float] = {}
    for epoch in epochs:
        first.setdefault(epoch["epoch"], epoch["time"])
    times = sorted(first.values())
    return max(later - earlier for earlier, later in pairwise(times) if later > lost)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Node, list[Node], dict[str, str]]]:
    """A head, two nodes, and the environment of their clients."""
    own = ("RAY_", "ORCHESTRATOR_", "MLFLOW_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)} | {
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{HERE / 'idle'}{os.pathsep}{HERE.parent}",
        "ORCHESTRATOR_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",
        "RAY_AUTH_MODE": "disabled",
    }
    head = Node(folder / "head", "127.0.0.10", 0, environment)
    nodes = [Node(folder / f"node{n}", f"127.0.0.{10 + n}", 1, environment, head.address) for n in (1, 2)]
    started = [head, *nodes]
    try:
        for node in started:
            begin(node)
        yield head, nodes, environment | {"RAY_API_SERVER_ADDRESS": head.jobs}
    finally:
        for node in reversed(started):
            node.kill()
        shutil.rmtree(folder / "head" / "ray", ignore_errors=True)


def begin(node: Node) -> None:
    """Start a node. Ray gives its start 30 seconds, which a busy machine may exceed: it is tried three times."""
    for _ in range(3):
        node.start()
        while node.running():
            if "Ray runtime started" in node.log():
                return
            time.sleep(0.2)
        node.kill()
    raise SystemExit(node.log())


if __name__ == "__main__":
    main()
