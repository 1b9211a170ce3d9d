"""Two processes with a process group between them, for tests: started once, they run one function after another.

Starting Python with PyTorch twice costs seconds, what is tested there milliseconds. A rank that hangs is a failure
which names the line.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORLD = 2

SECONDS = 600.0
"""For one function, on a machine with much other work: less than a test may take by pytest's own limit."""


def run_on_ranks(function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS) -> list[Any]:
    """What ``function(rank, *arguments)`` returns in each of two processes of one gloo group, by rank.

    Function, arguments and result travel by pickle, so the function stands at the top of a module. The processes have
    one thread each and this process' environment; what a function leaves in them the next one finds.

    Raises:
        RuntimeError: it raised on a rank, or a rank's process died; with the ranks' tracebacks.
        TimeoutError: a rank was not done after ``seconds``; with its stack.
    """
    ranks = _ranks()
    try:
        return ranks.run(_Job(function, arguments, dict(os.environ), seconds))
    except BaseException:  # whatever state they are in now, the next function gets new ones
        _ranks.cache_clear()
        ranks.end()
        raise


@dataclass(frozen=True)
class _Job:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    environment: Mapping[str, str]
    seconds: float


class _Ranks:
    """The two processes; they end with the one that started them."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # PyTorch is imported once for all ranks
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs, self._stack(rank)), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, job: _Job) -> list[Any]:
        with tempfile.TemporaryDirectory() as meeting:
            for pipe in self._pipes:
                pipe.send((job, f"{meeting}/place"))
            answers = self._answers(job.seconds)
        if troubles := [f"rank {rank}: {told}" for rank, (done, told) in answers.items() if not done]:
            raise RuntimeError("\n".join(troubles))
        return [answers[rank][1] for rank in range(WORLD)]

    def end(self) -> None:
        for pipe, process in zip(self._pipes, self._processes):
            process.kill()
            process.join()
            pipe.close()
        self._folder.cleanup()

    def _answers(self, seconds: float) -> dict[int, tuple[bool, Any]]:
        """By rank, in the order in which they came: whether it went well, and the result or what went wrong."""
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < WORLD:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                stacks = "\n".join(f"rank {rank}: {self._where(rank)}" for rank in waiting.values())
                raise TimeoutError(f"not done after {seconds:g} s:\n{stacks}")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    self._processes[rank].join()
                    answers[rank] = False, f"its process died, exit code {self._processes[rank].exitcode}"
        return answers

    def _where(self, rank: int) -> str:
        """The stack of a process that does not answer, the innermost line first."""
        process, deadline = self._processes[rank], time.monotonic() + 60
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
        while not (stack := self._stack(rank).read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return stack or "its stack is not to be had"

    def _stack(self, rank: int) -> Path:
        return Path(self._folder.name, f"{rank}.txt")


_ranks = cache(_Ranks)


def _serve(rank: int, pipe: Connection, stack: Path) -> None:
    """What a rank's process does: one job after another, until whoever gives them has gone."""
    torch.set_num_threads(1)
    with stack.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        while True:
            try:
                job, place = pipe.recv()
            except EOFError:
                return
            pipe.send(_done(rank, job, place))


def _done(rank: int, job: _Job, place: str) -> tuple[bool, Any]:
    os.environ.update(job.environment)
    # gloo, too, tells a collective that not all take part in; and before us, for its message says which.
    limit = timedelta(seconds=0.9 * job.seconds)
    try:
        dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=WORLD, timeout=limit)
        try:
            dist.barrier()  # a rank that was done at once would take along what the other is still connecting to
            return True, job.function(rank, *job.arguments)
        finally:
            dist.destroy_process_group()
    except Exception:
        return False, traceback.format_exc()
