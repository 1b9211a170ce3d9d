"""Ctrl-C: once stops cleanly and saves, twice ends at once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from orchestrator.console import Console


class Interrupts:
    """While active, the first SIGINT or SIGTERM creates ``stop_file``, which every worker looks for."""

    def __init__(self, stop_file: Path, console: Console) -> None:
        self._stop_file, self._console = stop_file, console
        self._old: dict[int, Any] = {}
        self.stopped = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python has no signal handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
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
        if self.stopped:
            os._exit(130)
        self.stopped = True
        self._stop_file.touch()
        self._console.say("Stopping at the end of this epoch and saving. Once more to end at once.")
