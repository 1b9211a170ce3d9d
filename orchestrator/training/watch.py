"""Trials that stopped reporting: the driver notices, has their stack written down, and kills their process."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

PROCESS, STACK, GIVEN_UP = "process.json", "stack.txt", "given-up"
LOOK_SECONDS = 1.0


def announce(folder: Path) -> None:
    """Say in ``folder`` who runs the trial, and be ready to be asked for the stack."""
    import ray

    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(signal, "SIGUSR2"):
        # Written by a handler in C: it answers also where Python hangs in somebody's extension.
        faulthandler.register(signal.SIGUSR2, file=(folder / STACK).open("w"), all_threads=True)
    partial = folder / f".{PROCESS}"
    partial.write_text(json.dumps({"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}))
    partial.replace(folder / PROCESS)


def given_up(folder: Path) -> str | None:
    """Why the driver has given the trial up, and where it hung; a process that is to begin it anew must not."""
    try:
        cause = (folder / GIVEN_UP).read_text()
    except FileNotFoundError:
        return None
    with suppress(OSError):
        threads = (folder / STACK).read_text(errors="replace").split("\n\n")
        ours = [thread for thread in threads if str(Path(__file__).parents[1]) in thread]  # which one trains
        if place := re.search(r"File .*", (ours or threads)[0]):
            return f"{cause}; it hung at {place.group()}"
    return cause


class Watch:
    """When each trial was last heard of. The time before its process is there does not count."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._folders: dict[int, Path] = {}
        self._heard: dict[int, float] = {}
        self._looked = 0.0

    def begin(self, unit: int, folder: Path) -> None:
        if self.timeout is not None:
            (folder / PROCESS).unlink(missing_ok=True)
            (folder / GIVEN_UP).unlink(missing_ok=True)
            self._folders[unit] = folder
            self._heard.pop(unit, None)

    def heard(self, unit: int) -> None:
        if unit in self._folders:
            self._heard[unit] = time.monotonic()

    def end(self, unit: int) -> None:
        self._folders.pop(unit, None)
        self._heard.pop(unit, None)

    def silent(self) -> dict[int, Path]:
        """The trials whose time is over, with their folders; asked of the storage at most once a second."""
        now = time.monotonic()
        if self.timeout is None or now - self._looked < LOOK_SECONDS:
            return {}
        self._looked = now
        for unit, folder in self._folders.items():
            if unit not in self._heard and (folder / PROCESS).exists():
                self._heard[unit] = now
        return {unit: self._folders[unit] for unit, heard in self._heard.items() if now - heard > self.timeout}


def kill(folder: Path, timeout: float) -> None:
    """Have the trial's process write its stack and die, wherever it runs; nobody waits for it.

    Whoever begins the trial anew finds out from :func:`given_up`.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    (folder / GIVEN_UP).write_text(f"no report for {timeout:g} s")
    process = json.loads((folder / PROCESS).read_text())
    there = NodeAffinitySchedulingStrategy(process["node"], soft=False)
    ray.remote(_kill).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(process["pid"])


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)  # a stopped process, too
