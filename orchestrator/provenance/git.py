"""git, asked within a time limit: a repository however large, or a file system that hangs, delays no one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

READ = 4_000_000
"""Bytes of an answer that are taken."""

QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_EXTERNAL_DIFF")
"""What a git hook that starts us has in its environment: its own repository."""


class Git:
    """git in one directory; every call is over at the deadline."""

    def __init__(self, where: Path, deadline: float) -> None:
        self._where, self._deadline = where, deadline

    def text(self, *words: str) -> str:
        """One line of answer, or nothing where git, the repository or the time is missing."""
        output, whole = self.read(*words)
        return output.decode("utf-8", "replace").strip() if whole else ""

    def read(self, *words: str) -> tuple[bytes, bool]:
        """At most :data:`READ` bytes of output, and whether that was all."""
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN} | QUIET
        left = self._deadline - time.monotonic()
        if left <= 0:
            return b"", False
        try:
            process = subprocess.Popen(
                ["git", *words], cwd=self._where, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError:  # no git, no such directory
            return b"", False

        def end() -> None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # its filters and monitors too: they hold the pipe

        timer = threading.Timer(left, end)
        timer.start()
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read(READ + 1)
        if len(output) > READ:
            end()
        code = process.wait()
        timer.cancel()
        return output[:READ], code == 0
