"""Run test functions in two processes that form a process group. The processes start once and are reused.

Starting Python with PyTorch takes seconds, a test only milliseconds. If a rank hangs, the error shows its stack.
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
"""Time limit of one function on a busy machine; less than pytest's limit for a test."""


def run_on_ranks(function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS) -> list[Any]:
    """Call ``function(rank, *arguments)`` in two processes of one gloo group and return the results by rank.

    Function, arguments and result are pickled, so the function must be at the top level of a module. The processes have
    one thread each and this process' environment; their state persists between functions.

    Raises:
        RuntimeError: the function raised on a rank, or a rank's process died; with the tracebacks.
        TimeoutError: a rank did not finish within ``seconds``; with its stack.
    """
    ranks = _ranks()
    try:
        return ranks.run(_Job(function, arguments, dict(os.environ), seconds))
    except BaseException:  # their state is unknown: start new processes for the next function
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
    """The two processes; they end with their parent process."""

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
        with tempfile.TemporaryDirectory() as folder:
            for pipe in self._pipes:
                pipe.send((job, f"{folder}/rendezvous"))
            answers = self._answers(job.seconds)
        if errors := [f"rank {rank}: {error}" for rank, (done, error) in answers.items() if not done]:
            raise RuntimeError("\n".join(errors))
        return [answers[rank][1] for rank in range(WORLD)]

    def end(self) -> None:
        for pipe, process in zip(self._pipes, self._processes):
            process.kill()
            process.join()
            pipe.close()
        self._folder.cleanup()

    def _answers(self, seconds: float) -> dict[int, tuple[bool, Any]]:
        """Success and result, or traceback, by rank in order of arrival."""
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
        """The stack of a process that does not answer, innermost frame first."""
        process = self._processes[rank]
        deadline = time.monotonic() + 60
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
        # Written piece by piece; below all that a job calls is the function that runs it.
        while _serve.__name__ not in (stack := self._stack(rank).read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return stack or "its stack is not available"

    def _stack(self, rank: int) -> Path:
        return Path(self._folder.name, f"{rank}.txt")


_ranks = cache(_Ranks)


def _serve(rank: int, pipe: Connection, stack: Path) -> None:
    """Main function of a rank's process: run jobs until the parent process closes the pipe."""
    torch.set_num_threads(1)
    with stack.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        while True:
            try:
                job, rendezvous = pipe.recv()
            except EOFError:
                return
            pipe.send(_done(rank, job, rendezvous))


def _done(rank: int, job: _Job, rendezvous: str) -> tuple[bool, Any]:
    os.environ.update(job.environment)
    # gloo reports an incomplete collective before our own timeout: its message names the collective.
    limit = timedelta(seconds=0.9 * job.seconds)
    try:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD, timeout=limit)
        try:
            dist.barrier()  # a rank that finished at once would close connections that the other still needs
            return True, job.function(rank, *job.arguments)
        finally:
            dist.destroy_process_group()
    except Exception:
        return False, traceback.format_exc()
