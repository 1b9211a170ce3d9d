"""Trials that stopped reporting: the driver notices, has their stack written down, and kills their process."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROCESS, STACK, GIVEN_UP = "process.json", "stack.txt", "given-up"
LOOK_SECONDS = 1.0

PACKAGE = Path(__file__).parents[1]

START_SECONDS = 60.0
"""How much longer than a silent trial a group of workers may take to come up."""


CLOCK_SECONDS = 10.0
"""By how much a machine's clock may be set while a trial runs."""


class TrialTimeout(Exception):
    """The driver has given a silent trial up; says for how long it was silent and, if its stack tells, where it hung.

    A process that is to begin it again must not.
    """


def announce(folder: Path, allowance: float = 0.0, rank: int = 0) -> TrialTimeout | None:
    """Say in ``folder`` who runs the trial, and be ready to be asked for the stack; not when it was given up.

    What runs a trial does so before anything else: from here on a hang is noticed. ``allowance`` are seconds beyond
    the trial's own that may pass before it, or another process that takes its place in ``folder``, is heard of. Of a
    group every ``rank`` does so: reports are rank 0's, but another one may hang.
    """
    import ray

    if hung := given_up(folder):
        return hung
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(signal, "SIGUSR2"):
        # Written by a handler in C: it answers also where Python hangs in somebody's extension.
        faulthandler.register(signal.SIGUSR2, file=(folder / _of_rank(STACK, rank)).open("w"), all_threads=True)
    about = {
        "pid": os.getpid(),
        "created": psutil.Process().create_time(),
        "node": ray.get_runtime_context().get_node_id(),
        "allowance": allowance,
    }
    partial = folder / f".{_of_rank(PROCESS, rank)}"
    partial.write_text(json.dumps(about))
    partial.replace(folder / _of_rank(PROCESS, rank))
    return None


def given_up(folder: Path) -> TrialTimeout | None:
    """Why the driver has given up the trial in ``folder``, if it has."""
    try:
        cause = (folder / GIVEN_UP).read_text()
    except FileNotFoundError:
        return None
    files = {0: folder / STACK} | {int(f.stem.partition("-")[2]): f for f in folder.glob(_of_rank(STACK, "*"))}
    frames = {rank: found for rank, file in sorted(files.items()) if (found := _training_thread(file))}
    busy = [rank for rank, found in frames.items() if not _waits_for_others(found)] or list(frames)
    if not busy:
        return TrialTimeout(cause)
    who = f"worker {busy[0]}" if len(files) > 1 else "it"
    return TrialTimeout(f"{cause}; {who} hung at {frames[busy[0]][0]}")


def _training_thread(stack: Path) -> list[str]:
    """The frames of the thread that trains, the innermost first; none where the file has none."""
    with suppress(OSError):
        threads = stack.read_text(errors="replace").split("\n\n")
        ours = [thread for thread in threads if str(PACKAGE) in thread]
        return re.findall(r"File .*", (ours or threads)[0])
    return []


def _waits_for_others(frames: list[str]) -> bool:
    """Whether a worker of a group is in a collective operation or in Train's report, as all are when one hangs."""
    if any("torch/distributed/" in frame or "workloads/distributed.py" in frame for frame in frames):
        return True
    return f"{PACKAGE}/runs/train.py" in next((frame for frame in frames if str(PACKAGE) in frame), "")


def _of_rank(name: str, rank: int | str) -> str:
    """The file of a rank: ``stack.txt`` of rank 0, ``stack-1.txt`` of rank 1."""
    stem, _, suffix = name.partition(".")
    return f"{stem}-{rank}.{suffix}" if rank else name


@dataclass
class _Watched:
    folder: Path
    process: str = ""
    """Who runs it, as last announced."""
    heard: float | None = None
    """When it was last heard of; None while there is no one who could be."""
    reported: bool = False


class TrialMonitor:
    """When each trial was last heard of. The time before its process is there does not count: it waits for devices."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._units: dict[int, _Watched] = {}
        self._looked = 0.0

    def begin(self, unit: int, folder: Path) -> None:
        if self.timeout is not None:
            # Of an earlier group there may be ranks that this one has not.
            ranks = [*folder.glob(_of_rank(PROCESS, "*")), *folder.glob(_of_rank(STACK, "*"))]
            for file in (folder / PROCESS, folder / GIVEN_UP, *ranks):
                file.unlink(missing_ok=True)
            self._units[unit] = _Watched(folder)

    def lost(self, unit: int) -> None:
        """The unit's process is dead and another one will go on with it."""
        if unit in self._units:
            (self._units[unit].folder / PROCESS).unlink(missing_ok=True)
            self._units[unit] = _Watched(self._units[unit].folder)

    def heard(self, unit: int) -> None:
        if unit in self._units:
            self._units[unit].heard, self._units[unit].reported = time.monotonic(), True

    def end(self, unit: int) -> None:
        self._units.pop(unit, None)

    def silent(self) -> dict[int, Path]:
        """The trials whose time is over, with their folders; asked of the storage at most once a second."""
        now = time.monotonic()
        if self.timeout is None or now - self._looked < LOOK_SECONDS:
            return {}
        self._looked = now
        for watched in self._units.values():
            if not watched.reported:
                _look(watched, now)
        return {
            unit: watched.folder
            for unit, watched in self._units.items()
            if watched.heard is not None and now - watched.heard > self.timeout
        }


def _look(watched: _Watched, now: float) -> None:
    """A process that was not there before has all its time from now on."""
    with suppress(FileNotFoundError):
        process = (watched.folder / PROCESS).read_text()
        if process != watched.process:
            watched.process, watched.heard = process, now + json.loads(process)["allowance"]


def kill(folder: Path, timeout: float) -> None:
    """Have the trial's processes write their stacks and die, wherever they run; no one waits for them.

    Whoever begins the trial again finds out from :func:`announce`.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    (folder / GIVEN_UP).write_text(f"no report for {timeout:g} s")
    for file in (folder / PROCESS, *folder.glob(_of_rank(PROCESS, "*"))):
        process = json.loads(file.read_text())
        there = NodeAffinitySchedulingStrategy(process["node"], soft=False)
        task = ray.remote(_kill).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
        task.remote(process["pid"], process["created"])


def _kill(pid: int, created: float) -> None:
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if abs(psutil.Process(pid).create_time() - created) > CLOCK_SECONDS:
            return  # it has died, and its number is somebody else's
        os.kill(pid, signal.SIGUSR2)
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)  # a stopped process, too
