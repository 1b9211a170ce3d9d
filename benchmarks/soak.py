"""Check that a sweep of many short trials does not leak memory, file handles, processes or placement groups.

One sweep of trials that sleep three short epochs, four at a time on an existing Ray cluster. The driver and each actor
are sampled every 25 trials. From trial 50 on, the resident memory of each may grow by 5%, its file handles and the
number of processes by 2; after the end no placement group may be left. Otherwise it fails (exit 1). The tests use
``--trials 100``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import ray
from harness import HERE, origin, versions, write_results
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

FIRST, EVERY, BEFORE_THE_END = 50, 25, 5
"""Trial from which nothing may grow, trials between samples, and trials after the last sample."""

MEMORY, HANDLES, PROCESSES = 0.05, 2, 2
AT_ONCE, EPOCHS, EPOCH_SECONDS = 4, 3, 0.2
IDLE = HERE / "idle"
RESTING = "ray::IDLE"
ACTORS = ("ray::TrialActor", "ray::ResourceTrainable")
"""Ray's names for the process of a trial while it waits and while it trains (Tune wraps the class)."""


@dataclass(frozen=True)
class Sample:
    """A sample after some trials: bytes and file handles by process, processes, placement groups."""

    trials: int
    seconds: float
    resident: dict[str, int]
    handles: dict[str, int]
    processes: int
    groups: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    args = parser.parse_args()
    if args.trials <= (least := FIRST + BEFORE_THE_END):
        parser.error(f"--trials must be above {least}: the growth from trial {FIRST} on is compared")
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        with cluster() as address:
            samples, seconds = soak(args.trials, home, address)
            left = groups()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    trouble = judge(samples, left)
    show(samples, seconds, left)
    result = {
        "trials": args.trials,
        "seconds": round(seconds, 1),
        "groups_left": left,
        "looks": [asdict(sample) for sample in samples],
        **origin(),
        "versions": versions("ray", "mlflow", "optuna", "torch"),
        "trouble": trouble,
    }
    if args.trials == parser.get_default("trials"):
        write_results(HERE / "results" / "soak.json", result)
    sys.exit("\n".join(trouble) or 0)


@contextmanager
def cluster() -> Iterator[str]:
    """A running one-node Ray cluster, with this process connected to it."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["PYTHONPATH"] = f"{IDLE}{os.pathsep}{HERE.parent}"
    node = {"num_cpus": AT_ONCE, "object_store_memory": 80_000_000, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=node)
    try:
        ray.init(started.address, log_to_driver=False, logging_level="ERROR")
        yield started.address
    finally:
        ray.shutdown()
        started.shutdown()


def soak(trials: int, home: Path, address: str) -> tuple[list[Sample], float]:
    """Run the sweep and sample it meanwhile. Raises SystemExit with the end of its output if it fails."""
    output, samples, started = home / "output.txt", [], time.monotonic()
    with output.open("w") as stream:
        sweep = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "sweep", "idle", f"epochs={EPOCHS}", f"seconds={EPOCH_SECONDS}",
             "--trials", str(trials),
             "--scheduler", "none", "--space", f"{IDLE / 'idle.py'}:space", "--sampler", "random",
             "--concurrency", str(AT_ONCE), "--ray-address", address],
            env=os.environ | {"ORCHESTRATOR_HOME": str(home)}, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
    due = [*range(EVERY, trials - BEFORE_THE_END, EVERY), trials - BEFORE_THE_END]
    try:
        while sweep.poll() is None:
            time.sleep(0.05)
            done = sum(" complete " in line for line in output.read_text().splitlines())
            if due and done >= due[0]:
                samples.append(sample(psutil.Process(sweep.pid), done, time.monotonic() - started))
                due = [mark for mark in due if mark > done]
    finally:
        sweep.kill()  # if this was interrupted
    if sweep.returncode:
        raise SystemExit(output.read_text()[-4000:])
    return samples, time.monotonic() - started


def sample(driver: psutil.Process, trials: int, seconds: float) -> Sample:
    """Sample the driver and each of its actors."""
    everyone = psutil.Process().children(recursive=True)
    watched = {"driver": driver} | {
        f"actor {process.pid}": process for process in everyone if title(process).startswith(ACTORS)
    }
    return Sample(
        trials=trials,
        seconds=round(seconds, 1),
        resident={name: process.memory_info().rss for name, process in watched.items()},
        handles={name: process.num_fds() for name, process in watched.items()},
        processes=sum(not title(process).startswith(RESTING) for process in everyone),
        groups=groups(),
    )


def title(process: psutil.Process) -> str:
    try:
        return str((process.cmdline() or [""])[0])
    except psutil.Error:
        return ""


def groups() -> int:
    """Placement groups that hold or wait for resources."""
    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())


def judge(samples: list[Sample], left: int) -> list[str]:
    """What has grown since trial 50, one sentence each."""
    first, last = next(sample for sample in samples if sample.trials >= FIRST), samples[-1]
    trouble = [f"{left} placement groups are left"] if left else []
    if abs(last.processes - first.processes) > PROCESSES:
        trouble.append(f"processes: {first.processes} -> {last.processes}")
    if (actors := len(last.resident) - 1) > AT_ONCE:
        trouble.append(f"{actors} actors for {AT_ONCE} trials at a time")
    # Tune may replace an actor: a process is compared with its second sample, when it has started.
    for name in sorted(last.resident):
        later = [sample for sample in samples if name in sample.resident][1:]
        base = next((sample for sample in later if sample.trials >= FIRST), last)
        if abs(last.resident[name] / base.resident[name] - 1) > MEMORY:
            trouble.append(f"{name}: {mib(base.resident[name])} -> {mib(last.resident[name])}")
        if abs(last.handles[name] - base.handles[name]) > HANDLES:
            trouble.append(f"{name}: {base.handles[name]} -> {last.handles[name]} file handles")
    return trouble


def show(samples: list[Sample], seconds: float, left: int) -> None:
    print("| trials | driver | actors | handles of the driver | of an actor, at most | processes | placement groups |")
    print("|---|---|---|---|---|---|---|")
    for sample in samples:
        actors = [name for name in sample.resident if name != "driver"]
        sizes = ", ".join(mib(sample.resident[name]) for name in actors)
        most = max((sample.handles[name] for name in actors), default=0)
        print(
            f"| {sample.trials} | {mib(sample.resident['driver'])} | {sizes} | {sample.handles['driver']} | {most} "
            f"| {sample.processes} | {sample.groups} |"
        )
    print(f"\n{seconds:.0f} s in all; placement groups afterwards: {left}")


def mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    main()
