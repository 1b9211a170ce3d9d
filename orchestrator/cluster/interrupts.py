"""Ctrl-C and SIGTERM: once stops cleanly and saves, twice ends at once."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.console import Console
from orchestrator.errors import INTERRUPTED

ONE_PRESS_SECONDS = 0.5
"""Signals within so long are one Ctrl-C: a terminal tells the whole group, and a wrapper among it may pass it on."""

RECORD_SECONDS = 2.0
"""The second signal waits at most so long for what the first one has to record."""

END = 0
"""No signal's number."""

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Remembered:
    """While active, Ctrl-C and SIGTERM raise KeyboardInterrupt, and ``pressed`` says so afterwards.

    What it comes into may make something else of that: an extension that was just being imported, an ImportError.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Remembered:
        # Elsewhere Python has no signal handlers; and what was started to ignore Ctrl-C goes on ignoring it.
        if threading.current_thread() is threading.main_thread():
            for number, default in DEFAULTS.items():
                if signal.getsignal(number) == default:
                    self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        raise KeyboardInterrupt


class Interrupts:
    """While active, the first SIGINT or SIGTERM creates ``stop_file``, which every worker looks for.

    It also has ``record`` called once, at once and in another thread: the process may be killed before it has saved.
    That thread reads Python's wakeup descriptor, which has the signal also while the main thread is in a long call of
    C or Ray has set a handler of its own.
    """

    def __init__(self, stop_file: Path, console: Console, record: Callable[[], None] = lambda: None) -> None:
        self._stop_file, self._console = stop_file, console
        self._record = record
        self._old: dict[int, Any] = {}
        self._pressed: float | None = None
        self._signals: tuple[socket.socket, socket.socket] | None = None
        self._wakeup = -1
        self._recorder: threading.Thread | None = None
        self.stopped = self.signalled = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python has no signal handlers
            self._signals = socket.socketpair()
            self._signals[1].setblocking(False)
            self._recorder = threading.Thread(
                target=self._wait_and_record, args=(self._signals[0],), name="interrupts", daemon=True
            )
            self._recorder.start()
            self._wakeup = signal.set_wakeup_fd(self._signals[1].fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
            earlier = getattr(self._old[signal.SIGINT], "__self__", None)
            if isinstance(earlier, Remembered) and earlier.pressed:  # a destructor, say, has swallowed it
                self._handle(signal.SIGINT, None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self.end_recording()
        if self._signals is not None:
            signal.set_wakeup_fd(self._wakeup)
            for end in self._signals:
                end.close()
            self._signals = None

    def end_recording(self) -> None:
        """Wait for a ``record`` that is under way; from now on no signal starts one."""
        self._wake(END)
        if self._recorder is not None:
            self._recorder.join()

    def asked(self) -> bool:
        """Whether a stop was asked for, by a signal here or by ``orchestrator stop`` from anywhere."""
        self.stopped = self.stopped or self._stop_file.exists()
        return self.stopped

    def stop(self, line: str) -> None:
        """Do what the first signal does, and say ``line``. Any thread may."""
        self.stopped = self.signalled = True
        if self._recorder is None:
            self._record()
        self._wake(signal.SIGTERM)
        self._stop_file.touch()
        try:
            self._console.say(line)
        except RuntimeError:  # the signal came into the writing of another line, which Python lets nobody interrupt
            os.write(sys.stderr.fileno(), f"{line}\n".encode())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._pressed is not None and now - self._pressed < ONE_PRESS_SECONDS:
            return
        if self._pressed is not None:
            if self._recorder is not None:
                self._recorder.join(RECORD_SECONDS)
            os._exit(INTERRUPTED)
        self._pressed = now
        self.stop("Stopping at the end of this epoch and saving. Once more to end at once.")

    def _wake(self, number: int) -> None:
        if self._signals is not None:
            with suppress(BlockingIOError):  # full of signals
                self._signals[1].send(bytes([number]))

    def _wait_and_record(self, signals: socket.socket) -> None:
        while (number := signals.recv(1)[0]) != END:
            if number in DEFAULTS:
                self._record()
                return


@contextmanager
def keep_sigterm_handler() -> Iterator[None]:
    """A context for ``ray.init``, which sets a handler of SIGTERM that raises SystemExit wherever the driver is.

    The handler of before is set again afterwards, and gets a SIGTERM that came meanwhile. Raises KeyboardInterrupt
    for such a one: the body was left in the middle.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    try:
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)
    except SystemExit:
        if not callable(handler):
            raise
        signal.alarm(0)  # Ray's core aborts the process 3 s after a SIGTERM that it has seen
        signal.signal(signal.SIGTERM, handler)  # again: it may have come right before the handler was set
        handler(signal.SIGTERM, None)
        raise KeyboardInterrupt from None
