"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal): the first one stops and saves, the second one ends at once.

The second one ends the process of a command. In a notebook or script it raises KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from orchestrator.console import Console
from orchestrator.errors import INTERRUPTED

ONE_PRESS_SECONDS = 0.5
"""Signals within this time count as one: a terminal signals the whole group, and a wrapper may pass it on."""

RECORD_SECONDS = 2.0
"""Time the second signal waits for what the first one records."""

END, RECORD = 0, 255
"""End the recording thread, or make it record. Not the numbers of signals."""

STOPPING = "Stopping at the end of this epoch and saving. Press Ctrl-C again to end at once."

DEFAULTS = {
    signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL,
}  # fmt: skip
"""The signals that stop, with Python's own handlers."""


class Remembered:
    """While active, the signals that stop raise KeyboardInterrupt and set ``pressed``.

    The interrupted code may turn the exception into another one, such as an ImportError of an extension.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Remembered:
        # Only the main thread may set handlers. A process started to ignore Ctrl-C keeps ignoring it.
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
    """While active, the first signal that stops creates ``stop_file``, which every worker checks.

    The signal also calls ``record`` once, in another thread and without delay, since the process may be killed before
    it has saved. That thread reads Python's wakeup descriptor, which receives the signal even while the main thread is
    in a long call in C or Ray has replaced the handler. It also prints the line about the stop: the main thread may
    have been interrupted while it holds a lock of the console. Processes that are forked meanwhile, such as a
    DataLoader's, ignore Ctrl-C, which is for this one, and have the default of the other signals.
    """

    def __init__(self, stop_file: Path, console: Console, record: Callable[[], None] = lambda: None) -> None:
        self._stop_file = stop_file
        self._console = console
        self._record = record
        self._old: dict[int, Any] = {}
        self._pressed: float | None = None
        self._signals: tuple[socket.socket, socket.socket] | None = None
        self._wakeup = -1
        self._recorder: threading.Thread | None = None
        self.stopped = self.signalled = False
        self.saves = True

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            signals = socket.socketpair()
            signals[1].setblocking(False)
            recorder = threading.Thread(
                target=self._wait_and_record, args=(signals[0],), name="interrupts", daemon=True
            )
            recorder.start()  # it may fail; nothing must be undone then
            self._signals, self._recorder = signals, recorder
            self._wakeup = signal.set_wakeup_fd(self._signals[1].fileno(), warn_on_full_buffer=False)
            _active.append(self)
            for number in DEFAULTS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
                    self._old[number] = signal.signal(number, self._handle)
            earlier = getattr(self._old[signal.SIGINT], "__self__", None)
            if (
                isinstance(earlier, Remembered) and earlier.pressed
            ):  # the exception was lost, for example in a destructor
                self._handle(signal.SIGINT, None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self.end_recording()
        if self._signals is not None:
            _active.remove(self)
            signal.set_wakeup_fd(self._wakeup)
            for end in self._signals:
                end.close()
            self._signals = None

    def end_recording(self) -> None:
        """Wait for a running ``record``. Later signals start none."""
        self._wake(END)
        if self._recorder is not None:
            self._recorder.join()

    def stop_requested(self) -> bool:
        """Whether a stop was requested, by a signal or by ``orchestrator stop``."""
        self.stopped = self.stopped or self._stop_file.exists()
        return self.stopped

    def stop(self, line: str, *, saves: bool = True) -> None:
        """Act as the first signal does and print ``line``. Thread-safe. ``saves``: whether workers can still save."""
        self.saves = self.saves and saves  # a signal after Ray has died brings no worker back
        if self._recorder is None:
            self._record()
        self._stop(RECORD)
        self._console.say(line)

    def _stop(self, cause: int) -> None:
        self.stopped = self.signalled = True
        self._wake(cause)
        with suppress(OSError):  # a full disk: ``stopped`` is enough for a process that trains itself
            self._stop_file.touch()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._pressed is not None and now - self._pressed < ONE_PRESS_SECONDS:
            return
        if self._pressed is not None:
            if number == signal.SIGINT and self._old[number] is signal.default_int_handler:  # not of a command
                self._finish_recording()
                raise KeyboardInterrupt
            self.end_process()
        self._pressed = now
        self._stop(number)

    def end_process(self, line: str = "") -> NoReturn:
        """End this process, whatever it waits for, once a signal is recorded. Prints ``line``."""
        self._finish_recording()
        if line:
            self._console.say(line)
        os._exit(INTERRUPTED)

    def _finish_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.join(RECORD_SECONDS)
        self._console.show_cursor()

    def _wake(self, number: int) -> None:
        if self._signals is not None:
            with suppress(BlockingIOError):  # the socket is full
                self._signals[1].send(bytes([number]))

    def _wait_and_record(self, signals: socket.socket) -> None:
        while (number := signals.recv(1)[0]) != END:
            if number in DEFAULTS or number == RECORD:
                try:
                    self._record()
                finally:
                    if number != RECORD:
                        self._console.say(STOPPING)
                return


_active: list[Interrupts] = []


def _leave_signals_to_the_parent() -> None:
    """Undo in a forked process what the active :class:`Interrupts` have set: its handlers would stop the parent."""
    if _active:
        _active.clear()
        signal.set_wakeup_fd(-1)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


os.register_at_fork(after_in_child=_leave_signals_to_the_parent)


@contextmanager
def sighup_blocked() -> Iterator[None]:
    """Block SIGHUP in this thread, and for good in processes started within the block.

    A terminal that closes sends it to the command and to its local Ray cluster, which the command needs to save.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def keep_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM after ``ray.init``, which sets one that raises SystemExit.

    A SIGTERM within the block is passed to the restored handler and raises KeyboardInterrupt.
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
        signal.alarm(0)  # Ray's core aborts the process 3 s after it has seen SIGTERM
        signal.signal(signal.SIGTERM, handler)  # again: the signal may have come before the handler was set
        handler(signal.SIGTERM, None)
        raise KeyboardInterrupt from None
