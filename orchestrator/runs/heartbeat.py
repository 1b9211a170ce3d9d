"""Detect trials that stopped reporting, write their stacks, and kill their processes."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.leftovers import start_of
from orchestrator.runs.reports import TrialTimeout
from orchestrator.storage import disk

PROCESS, STACK, GIVEN_UP = "process.json", "stack.txt", "given-up"
PAUSE_SECONDS = 5.0
"""Time between two polls from which the driver itself was busy: reports may be waiting, so the next poll decides."""

POLL_SECONDS = 1.0

PACKAGE = Path(__file__).parents[1]

START_SECONDS = 60.0
"""Time for the process that starts a group of workers, which has no limit of its own as the workers have."""

STACK_SECONDS = 1.0
"""Time that a process has to write its stack."""

STACKS_SECONDS = 30.0
"""Time limit for the stacks of all workers of a group."""

PLACES_NAMED = 3
"""Lines that a message names where several workers may have hung."""


def announce(folder: Path, allowance: float = 0.0, rank: int = 0) -> TrialTimeout | None:
    """Register this process in ``folder`` as the one that runs the trial, and prepare to write its stack on request.

    Called first by a process that runs a trial: from then on a hang is detected. ``allowance`` are additional seconds
    until the first report. In a group every ``rank`` registers: rank 0 reports, but another rank may hang. Returns the
    timeout, without registering, when the trial was already given up.
    """
    if hung := given_up(folder):
        return hung
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(signal, "SIGUSR2"):
        # The handler is written in C, so it works while Python hangs in an extension.
        faulthandler.register(signal.SIGUSR2, file=(folder / _of_rank(STACK, rank)).open("w"), all_threads=True)
    about = {
        "pid": os.getpid(),
        "created": start_of(os.getpid()),
        "node": ray.get_runtime_context().get_node_id(),
        "allowance": allowance,
    }
    disk.write_json(folder / _of_rank(PROCESS, rank), about, durable=False)
    return None


def give_up(folder: Path, cause: str) -> None:
    """Keep every further process from running the trial in ``folder``, which fails with ``cause``."""
    (folder / GIVEN_UP).write_text(cause, "utf-8")


def given_up(folder: Path) -> TrialTimeout | None:
    """Why the trial in ``folder`` was given up, or None if it was not."""
    try:
        cause = (folder / GIVEN_UP).read_text("utf-8")
    except FileNotFoundError:
        return None
    frames = _frames(folder)
    busy = _busy(frames) or list(frames)[:1]
    places: dict[str, list[int]] = {}
    for rank in busy:
        places.setdefault(frames[rank][0], []).append(rank)
    if not places:
        return TrialTimeout(cause)
    rarest = sorted(places, key=lambda place: len(places[place]))[:PLACES_NAMED]
    if len(places) > 1:
        # NCCL returns at once: a worker waits for the others wherever it next reads a value of its device.
        named = "; ".join(f"{_workers(places[place])} at {place}" for place in rarest)
        return TrialTimeout(f"{cause}; one hung and others may have waited for it: {named}")
    who = f"worker {busy[0]}" if list(folder.glob(_of_rank(STACK, "*"))) else "it"
    return TrialTimeout(f"{cause}; {who} hung at {rarest[0]}")


def _workers(ranks: list[int]) -> str:
    """``worker 3``, or ``worker 0 and 6 more``."""
    return f"worker {ranks[0]}" + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")


def waited_in_vain(folder: Path, timeout: float) -> TrialTimeout:
    """The error of a worker whose collective operation timed out. Names the worker that did not take part, if any.

    Called by a worker that waited, while the processes of the group still exist. Takes seconds.
    """
    calls = _on_each_process(folder, _request_stack)
    ray.wait(calls, num_returns=len(calls), timeout=STACKS_SECONDS)
    # A worker whose training has ended is not the one that hung.
    frames = {rank: stack for rank, stack in _frames(folder).items() if any(str(PACKAGE) in each for each in stack)}
    hung = "".join(f"; worker {rank} hung at {frames[rank][0]}" for rank in _busy(frames)[:1])
    return TrialTimeout(f"no answer from the other workers for {timeout:g} s (ORCHESTRATOR_COLLECTIVE_TIMEOUT){hung}")


def _frames(folder: Path) -> dict[int, list[str]]:
    """The frames of each rank that has written its stack, innermost first."""
    files = {0: folder / STACK} | {int(f.stem.partition("-")[2]): f for f in folder.glob(_of_rank(STACK, "*"))}
    return {rank: stack for rank, file in sorted(files.items()) if (stack := _training_thread(file))}


def _busy(frames: dict[int, list[str]]) -> list[int]:
    """The ranks that do not wait for others."""
    return [rank for rank, stack in frames.items() if not _waits_for_others(stack)]


def _training_thread(stack: Path) -> list[str]:
    """Frames of the training thread, innermost first. Empty if the file has none."""
    with suppress(OSError):
        threads = stack.read_text(errors="replace").split("\n\n")
        ours = [thread for thread in threads if str(PACKAGE) in thread]
        return re.findall(r"File .*", (ours or threads)[0])
    return []


def _waits_for_others(frames: list[str]) -> bool:
    """Whether a worker is in a collective operation or in Train's report, where all wait when one hangs."""
    waiting = ("torch/distributed/", "workloads/distributed.py", f"in {waited_in_vain.__name__}")
    if any(words in frame for frame in frames for words in waiting):
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
    """The registered process."""
    heard: float | None = None
    """Time of the last report or registration. None while no process is registered."""
    reported: bool = False


class TrialMonitor:
    """Tracks when each trial last reported. The time before its process starts does not count."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._watched: dict[int, _Watched] = {}
        self._polled = 0.0
        self._paused = False

    def begin(self, seed_run: int, folder: Path) -> None:
        if self.timeout is not None:
            # An earlier group may have had more ranks.
            ranks = [*folder.glob(_of_rank(PROCESS, "*")), *folder.glob(_of_rank(STACK, "*"))]
            for file in (folder / PROCESS, folder / GIVEN_UP, *ranks):
                file.unlink(missing_ok=True)
            self._watched[seed_run] = _Watched(folder)

    def lost(self, seed_run: int) -> None:
        """The process of a trial is dead, and another one will continue it."""
        if seed_run in self._watched:
            (self._watched[seed_run].folder / PROCESS).unlink(missing_ok=True)
            self._watched[seed_run] = _Watched(self._watched[seed_run].folder)

    def heard(self, seed_run: int) -> None:
        if seed_run in self._watched:
            self._watched[seed_run].heard = time.monotonic()
            self._watched[seed_run].reported = True

    def end(self, seed_run: int) -> None:
        self._watched.pop(seed_run, None)

    def silent(self) -> dict[int, Path]:
        """Trials over their time limit, with their folders. Reads the storage at most once a second."""
        now = time.monotonic()
        if self.timeout is None or now - self._polled < POLL_SECONDS:
            return {}
        paused = now - self._polled > PAUSE_SECONDS and not self._paused
        self._polled = now
        self._paused = paused
        for watched in self._watched.values():
            if not watched.reported:
                _poll(watched, now)
        if paused:
            return {}
        return {
            seed_run: watched.folder
            for seed_run, watched in self._watched.items()
            if watched.heard is not None and now - watched.heard > self.timeout
        }


def _poll(watched: _Watched, now: float) -> None:
    """Reset the timeout when the trial gets a new process."""
    with suppress(FileNotFoundError):
        process = (watched.folder / PROCESS).read_text()
        if process != watched.process:
            watched.process = process
            watched.heard = now + json.loads(process)["allowance"]


def kill(folder: Path, timeout: float) -> None:
    """Make the trial's processes write their stacks, then kill them, on any node. Does not wait.

    All stacks are written before the first process is killed: the death of one ends the group, and the worker that hung
    is known by its stack. A process that starts the trial again learns of it from :func:`announce`.
    """
    give_up(folder, f"no report for {timeout:g} s")
    _on_each_process(folder, _kill, _on_each_process(folder, _request_stack))


def _on_each_process(folder: Path, signals: Callable[..., object], *arguments: object) -> list[Any]:
    """Call ``signals`` with pid and start of each process of the trial, on its node. Does not wait."""
    calls = []
    for file in folder.glob(PROCESS.replace(".", "*.")):
        process = json.loads(file.read_text())
        there = NodeAffinitySchedulingStrategy(process["node"], soft=False)
        task = ray.remote(signals).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
        calls.append(task.remote(process["pid"], process["created"], *arguments))
    return calls


def _request_stack(pid: int, created: str) -> None:
    """Make a process write its stack, unless it has died."""
    with suppress(ProcessLookupError):
        if _is_alive(pid, created):
            os.kill(pid, signal.SIGUSR2)
            time.sleep(STACK_SECONDS)


def _kill(pid: int, created: str, stacks: list[Any]) -> None:
    """Kill a process once the calls of ``stacks`` have ended, or after ``STACKS_SECONDS``."""
    ray.wait(stacks, num_returns=len(stacks), timeout=STACKS_SECONDS)
    with suppress(ProcessLookupError):
        if _is_alive(pid, created):
            os.kill(pid, signal.SIGKILL)  # works on a stopped process too


def _is_alive(pid: int, created: str) -> bool:
    """Whether this process runs: another one may have its number by now."""
    with suppress(psutil.NoSuchProcess):
        return start_of(pid) == created
    return False
