"""Ctrl-C: once stops cleanly and saves, twice ends at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from orchestrator.console import Console
from orchestrator.errors import INTERRUPTED

ONE_PRESS_SECONDS = 0.5
"""Signals within so long are one Ctrl-C: a terminal tells the whole group, and a wrapper among it may pass it on."""


class Remembered:
    """While active, Ctrl-C raises KeyboardInterrupt as ever, and ``pressed`` says so afterwards.

    What it comes into may make something else of that: an extension that was just being imported, an ImportError.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._old: Any = None

    def __enter__(self) -> Remembered:
        # Elsewhere Python has no signal handlers; and what was started to ignore Ctrl-C goes on ignoring it.
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._old = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        raise KeyboardInterrupt


class Interrupts:
    """While active, the first SIGINT or SIGTERM creates ``stop_file``, which every worker looks for."""

    def __init__(self, stop_file: Path, console: Console) -> None:
        self._stop_file, self._console = stop_file, console
        self._old: dict[int, Any] = {}
        self._pressed: float | None = None
        self.stopped = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python has no signal handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
            earlier = getattr(self._old[signal.SIGINT], "__self__", None)
            if isinstance(earlier, Remembered) and earlier.pressed:  # a destructor, say, has swallowed it
                self._handle(signal.SIGINT, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether a stop was asked for, by a signal here or by ``orchestrator stop`` from anywhere."""
        self.stopped = self.stopped or self._stop_file.exists()
        return self.stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._pressed is not None and now - self._pressed < ONE_PRESS_SECONDS:
            return
        if self.stopped:
            os._exit(INTERRUPTED)
        self.stopped, self._pressed = True, now
        self._stop_file.touch()
        told = "Stopping at the end of this epoch and saving. Once more to end at once."
        try:
            self._console.say(told)
        except RuntimeError:  # the signal came into the writing of another line, which Python lets nobody interrupt
            os.write(sys.stderr.fileno(), f"{told}\n".encode())
