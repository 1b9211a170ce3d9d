"""Calls of git with a time limit, so that a large repository or a file system that hangs does not delay a start."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

READ = 4_000_000
"""Bytes of output that are read at most."""

QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_EXTERNAL_DIFF")
"""Variables that a git hook sets for its own repository; they are removed."""


class Git:
    """git in one directory. No call lasts beyond ``deadline``, a time of :func:`time.monotonic`."""

    def __init__(self, where: Path, deadline: float) -> None:
        self._where = where
        self._deadline = deadline

    def text(self, *words: str) -> str:
        """The output, stripped; empty without git or a repository, or at the deadline."""
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
                os.killpg(process.pid, signal.SIGKILL)  # also its filters and monitors, which keep the pipe open

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
