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

START_SECONDS = 60.0
"""How much longer than a silent trial a group of workers may take to come up."""


CLOCK_SECONDS = 10.0
"""By how much a machine's clock may be set while a trial runs."""


class GivenUp(Exception):
    """The driver has given a silent trial up; says for how long it was silent and, if its stack tells, where it hung.

    A process that is to begin it anew must not.
    """


def announce(folder: Path, allowance: float = 0.0) -> GivenUp | None:
    """Say in ``folder`` who runs the trial, and be ready to be asked for the stack; not when it was given up.

    What runs a trial does so before anything else: from here on a hang is noticed. ``allowance`` are seconds beyond
    the trial's own that may pass before it, or another process that takes its place in ``folder``, is heard of.
    """
    import ray

    if hung := given_up(folder):
        return hung
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(signal, "SIGUSR2"):
        # Written by a handler in C: it answers also where Python hangs in somebody's extension.
        faulthandler.register(signal.SIGUSR2, file=(folder / STACK).open("w"), all_threads=True)
    about = {
        "pid": os.getpid(),
        "created": psutil.Process().create_time(),
        "node": ray.get_runtime_context().get_node_id(),
        "allowance": allowance,
    }
    partial = folder / f".{PROCESS}"
    partial.write_text(json.dumps(about))
    partial.replace(folder / PROCESS)
    return None


def given_up(folder: Path) -> GivenUp | None:
    """Why the driver has given up the trial in ``folder``, if it has."""
    try:
        cause = (folder / GIVEN_UP).read_text()
    except FileNotFoundError:
        return None
    with suppress(OSError):
        threads = (folder / STACK).read_text(errors="replace").split("\n\n")
        ours = [thread for thread in threads if str(Path(__file__).parents[1]) in thread]  # which one trains
        if place := re.search(r"File .*", (ours or threads)[0]):
            return GivenUp(f"{cause}; it hung at {place.group()}")
    return GivenUp(cause)


@dataclass
class _Watched:
    folder: Path
    process: str = ""
    """Who runs it, as last announced."""
    heard: float | None = None
    """When it was last heard of; None while there is nobody who could be."""
    reported: bool = False


class Watch:
    """When each trial was last heard of. The time before its process is there does not count: it waits for devices."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._units: dict[int, _Watched] = {}
        self._looked = 0.0

    def begin(self, unit: int, folder: Path) -> None:
        if self.timeout is not None:
            (folder / PROCESS).unlink(missing_ok=True)
            (folder / GIVEN_UP).unlink(missing_ok=True)
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
    """Have the trial's process write its stack and die, wherever it runs; nobody waits for it.

    Whoever begins the trial anew finds out from :func:`announce`.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    (folder / GIVEN_UP).write_text(f"no report for {timeout:g} s")
    process = json.loads((folder / PROCESS).read_text())
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
