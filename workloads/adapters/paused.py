"""Iterate over a library's training loop that calls back: the loop runs in a thread and waits in each call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The iteration was closed: raised in the call that waits, to end the loop."""


def paused(run: Callable[[Callable[[T], None]], None]) -> Generator[T, None, None]:
    """The values with which ``run`` calls its argument, which returns when the next one is requested.

    An error of ``run`` is raised here. Threads take turns: only one of them ever runs.
    """
    values: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    turns: SimpleQueue[bool] = SimpleQueue()

    def pause(value: T) -> None:
        values.put((True, value))
        if not turns.get():
            raise Closed

    def target() -> None:
        error: BaseException | None = None
        try:
            run(pause)
        except Closed:
            pass
        except BaseException as raised:
            error = raised
        values.put((False, error))

    thread = threading.Thread(target=target, daemon=True, name="training")
    thread.start()
    try:
        while True:
            more, value = values.get()
            if not more:
                if value is not None:
                    raise value
                return
            yield value
            turns.put(True)
    finally:
        turns.put(False)
        thread.join()
