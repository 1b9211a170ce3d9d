"""A Ray job: its status, the exit code of its entrypoint, its log.

A job ends in Ray as SUCCEEDED, FAILED or STOPPED, without an exit code. The command line therefore prints its exit
code as the last line of the job's log (:data:`EXIT_RECORD`), from which it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.errors import DONE, FAILED, INTERRUPTED, PARTIAL

EXIT_RECORD = "orchestrator exit code: "
"""Prefix of the last line of a job's log; the exit code follows."""


@dataclass(frozen=True, slots=True)
class Job:
    """State of a job.

    ``status``: pending, running, finished, partial, failed, interrupted (stopped), or lost (its driver or cluster
    died without leaving an exit code). ``exit_code``: that of the entrypoint, None until it ends. Times are UTC.
    """

    id: str
    status: str
    exit_code: int | None
    command: str
    user: str | None = None
    commit: str | None = None
    queue: str | None = None
    priority: int | None = None
    started: str | None = None
    ended: str | None = None
    message: str | None = None

    @property
    def active(self) -> bool:
        return self.exit_code is None


class Lines:
    """Shows each line of a growing log once, from several overlapping sources; the exit record is not shown."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._seen = 0
        self._rest = ""

    def feed(self, text: str, at: int) -> None:
        """Add ``text``, which starts at character ``at`` of the log."""
        fresh = text[max(0, self._seen - at) :]
        self._seen += len(fresh)
        *whole, self._rest = (self._rest + fresh).split("\n")
        for line in whole:
            if not line.startswith(EXIT_RECORD):
                self._show(line)

    def close(self) -> None:
        """Show the last line if it has no line end."""
        if self._rest:
            self.feed("\n", self._seen)


def recorded(log: str) -> int | None:
    """The exit code that the entrypoint left in its log, or None."""
    codes = re.findall(rf"^{EXIT_RECORD}(\d+)$", log, re.MULTILINE)
    return int(codes[-1]) if codes else None


def read(details: Any, log: str = "") -> Job:
    """Convert Ray's ``JobDetails``; ``log`` is needed for the exit code of a job that has ended."""
    metadata = details.metadata or {}
    status, code, message = _outcome(details, log)
    return Job(
        id=str(details.submission_id),
        status=status,
        exit_code=code,
        command=metadata.get("command") or details.entrypoint,
        user=metadata.get("user"),
        commit=metadata.get("commit"),
        queue=metadata.get("queue"),
        priority=int(metadata["priority"]) if metadata.get("priority", "").isdecimal() else None,
        started=_moment(details.start_time),
        ended=_moment(details.end_time),
        message=message,
    )


def _outcome(details: Any, log: str) -> tuple[str, int | None, str | None]:
    """Status, exit code, and Ray's message if the entrypoint left no exit code."""
    ray_status = str(details.status)
    if not details.status.is_terminal():
        return ray_status.lower(), None, None
    if ray_status == "STOPPED":
        return "interrupted", INTERRUPTED, None
    code = recorded(log)
    if code is None:  # not an orchestrator command, or killed
        code = DONE if ray_status == "SUCCEEDED" else details.driver_exit_code
    if code is None or code < 0 or (code > 128 and code != INTERRUPTED):  # killed
        started = details.driver_node_id is not None
        message = (details.message or "").strip().partition("\n")[0]
        # Ray appends the last lines of the log, below a heading at the end of the first line.
        return ("lost" if started else "failed"), FAILED, message.partition(", last available logs")[0][:300]
    return {DONE: "finished", PARTIAL: "partial", INTERRUPTED: "interrupted"}.get(code, "failed"), code, None


def _moment(milliseconds: int | None) -> str | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds") if milliseconds else None
